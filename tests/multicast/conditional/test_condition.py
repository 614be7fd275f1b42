"""Tags and conditions as headers: what is read back, what is refused, what forged ones mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multicast import LogPosition, MessageID, nothing_after
from multicast.conditional.condition import (
    CONDITION_BYTES_MAX,
    EXPECT,
    ITEMS_MAX,
    NO_MARKS,
    TAGS,
    UNREADABLE,
    Condition,
    boundary,
    checked_tags,
    expect_header,
    marks,
    tags_header,
)
from multicast.conditional.judge import LogJudge, WhyVoid
from multicast.drivers.protocol import Record
from multicast.errors import UsageError

LOG = "P1+P2"
HERE = LogPosition(LOG, 17)
TAG = st.text(
    st.characters(exclude_characters=",;\ufffd\x7f", exclude_categories=["Cs"], min_codepoint=32),
    min_size=1,
    max_size=100,
)


@given(st.lists(TAG, max_size=8), st.lists(st.lists(TAG, min_size=1, max_size=3), max_size=3),
       st.binary(max_size=80))  # fmt: skip
def test_what_is_written_is_read_back(tags, any_of, key):
    expectation = nothing_after(HERE, any_of=any_of) if any_of else nothing_after(HERE, key=key)
    headers = [("own", b"1"), expect_header(expectation)]
    if tags:
        headers.append(tags_header(LOG, tags))
    read = marks(LOG, headers)
    assert set(read.tokens) == {f"t:{tag}" for tag in tags}
    assert read.condition == expectation.condition
    assert marks("P1", headers) == NO_MARKS


@given(st.lists(st.tuples(st.sampled_from([TAGS, EXPECT, "a", "\ufffd"]), st.binary() | st.none())))
def test_no_header_stops_a_reader(headers):
    marks(LOG, headers)
    prefixed = [(name, value and f"{LOG}|".encode() + value) for name, value in headers]
    decision = LogJudge(LOG, 0).replay(Record(3, b"", None, prefixed))
    assert decision is not None


@pytest.mark.parametrize(
    "text",
    ["", "|", "17", "17|", "|*", "x|*", "-1|*", "+1|*", "1 |*", "\u0661|*", f"{1 << 63}|*",
     "0" * 20 + "|*", "17|t:", "17|a", "17|t:a;", "17|;t:a", "17|t:a,,t:b", "17|k:a", "17|k:0",
     "17|k:AB", "17|k:" + "00" * 65, "17|h:00", "17|*,t:a", "17|**", "17|t:a|t:b\n",
     "17|t:\ufffd", "17|" + ";".join(["*"] * 17), "17|" + ",".join(["t:a"] * 10),
     "17|t:" + "a" * 101, "17|t:a,T:b"],
)  # fmt: skip
def test_a_condition_of_another_form_is_unreadable_and_void(text):
    header = (EXPECT, f"{LOG}|{text}".encode())
    assert marks(LOG, [header]).condition is UNREADABLE
    decision = LogJudge(LOG, 0).judge(Record(20, b"", None, [header]))
    assert decision.reason is WhyVoid.UNREADABLE


def test_a_condition_that_is_too_large_is_unreadable():
    item = "k:" + "00" * 64
    text = f"{LOG}|17|" + ",".join([item] * 8)
    assert len(text) < CONDITION_BYTES_MAX
    long = ";".join([",".join([item] * 8)] * 4)
    assert len(long) > CONDITION_BYTES_MAX
    assert marks(LOG, [(EXPECT, text.encode())]).condition is not UNREADABLE
    assert marks(LOG, [(EXPECT, f"{LOG}|17|{long}".encode())]).condition is UNREADABLE


def test_the_first_header_that_names_the_log_decides():
    first = expect_header(nothing_after(HERE, tags={"a"}))
    second = expect_header(nothing_after(LogPosition(LOG, 18)))
    other = expect_header(nothing_after(LogPosition("P1", 1)))
    assert marks(LOG, [other, first, second]).condition == Condition(17, (frozenset({"t:a"}),))
    assert marks(LOG, [(EXPECT, None), second, first]).condition == Condition(18, (frozenset(),))
    assert marks(LOG, [(TAGS, f"{LOG}|a;b".encode()), tags_header(LOG, ["a"])]) == NO_MARKS
    assert marks(LOG, [first, ("odd\ufffd", b"")]) == NO_MARKS


def test_what_is_refused_says_why():
    after = nothing_after
    for call, text in [
        (lambda: after(HERE, tags="a"), "not a str"),
        (lambda: after(HERE, any_of="a"), "not a str"),
        (lambda: after(HERE, any_of=["a"]), "not a str"),
        (lambda: after(HERE, any_of=[[]]), "is empty"),
        (lambda: after(HERE, any_of=[["a"]], key="k"), "not both"),
        (lambda: after(HERE, any_of=[["a"]], tags=["k"]), "not both"),
        (lambda: after(HERE, any_of=[["a"]] * (ITEMS_MAX + 1)), "17 sets"),
        (lambda: after(HERE, any_of=[[f"{n}" * 50 for n in range(9)]]), "9 tags"),
        (lambda: after(HERE, any_of=[[str(n) * 99 for n in range(8)]] * 6), "4,096 bytes"),
        (lambda: after(LogPosition(LOG, -1)), "not a position"),
        (lambda: after(MessageID(LOG, (1 << 63) - 1)), "not a position"),
        (lambda: checked_tags([1]), "not a tag"),
        (lambda: checked_tags(["a\n"]), "not a tag"),
        (lambda: checked_tags([""]), "not a tag"),
        (lambda: checked_tags(["\ud800"]), "not a tag"),
        (lambda: boundary("P1", None), "not a str"),
        (lambda: boundary({"P1"}, after(HERE)), "looks at log P1.P2, but 'within' names P1"),
    ]:
        with pytest.raises(UsageError, match=text):
            call()
    assert boundary({"P2", "P1"}, after(HERE)) == boundary(None, after(HERE)) == {"P1", "P2"}
    assert boundary(None, None) is None
    assert after(MessageID(LOG, 16)) == after(HERE)
