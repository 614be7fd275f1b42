"""The fuzzer: a small campaign, inputs that larger campaigns found, and the campaign itself."""

import pytest

from bench.fuzz.campaign import fuzz, input_of
from bench.fuzz.mutation import Shape
from bench.fuzz.table import table
from bench.fuzz.target import FuzzTarget
from multicast import messages
from multicast.errors import UsageError
from topology.documents import DEPTH_MAX, NotReadable, json_object

INPUTS = 300  # of each; `make fuzz` takes a million
TABLE = table()


@pytest.mark.slow
@pytest.mark.parametrize("target", TABLE, ids=lambda target: target.name.replace(" ", "-"))
def test_nothing_comes_out_of_a_decoder_but_what_the_table_allows(target):
    tally = fuzz(target, INPUTS, seed=1)

    assert [str(failure) for failure in tally.failures] == []
    assert tally.inputs == INPUTS


@pytest.mark.parametrize("target", TABLE, ids=lambda target: target.name.replace(" ", "-"))
def test_what_inputs_are_made_from_is_readable(target):
    assert any(map(target.holds, target.valid))


def crashes(raw):
    if b"9" in raw:
        raise ZeroDivisionError("a planted bug")


BROKEN = FuzzTarget("broken", crashes, (ValueError,), [b"1 2 3 4 5"], Shape.TEXT)


def test_a_failure_is_found_and_its_command_makes_the_same_input():
    (failure, *_) = fuzz(BROKEN, 1000, seed=5).failures

    assert "ZeroDivisionError: a planted bug" in failure.error
    assert input_of(BROKEN, failure.number, 5) == failure.raw
    assert f"--target 'broken' --seed 5 --first {failure.number} --inputs 1" in str(failure)
    (again,) = fuzz(BROKEN, 1, seed=5, first=failure.number).failures
    assert again.raw == failure.raw


# -- documents ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":1e999}',
        b'{"a":-1e999}',
        b'{"a":NaN}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":"\\ud800"}',
        b'{"\\udfff":1}',
        b"[]",
        b"\xff\xfe",
        b"",
        b'{"a":' * DEPTH_MAX + b"{}" + b"}" * DEPTH_MAX,
        b'{"a":%s}' % (b"1" * 301),
    ],
    ids=lambda raw: raw[:12].decode(errors="replace"),
)
def test_a_document_that_says_nothing_sensible_is_not_readable(raw):
    with pytest.raises(NotReadable):
        json_object(raw)


def test_a_document_of_the_greatest_depth_is_readable():
    assert json_object(b'{"a":' * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX)
    assert json_object(b'{"a":%s}' % (b"1" * 300))


# -- headers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [("amcast.epoch", b"P1|" + b"9" * 5000)],
        [("amcast.epoch", b"P1|1234567890")],
        [("amcast.epoch", "P1|٣".encode())],
        [("amcast.epoch", None)],
        [("amcast.skip", b"\xff")],
        [("\ufffd", b""), ("amcast.skip", b"P1")],
        [("amcast.skip", b"P1"), ("a\ufffd", b"")],
        [("amcast.to", b"P1|")],
    ],
    ids=repr,
)
def test_a_header_that_is_not_exactly_ours_makes_an_ordinary_message(headers):
    assert messages.special("P1", headers) is None


def test_a_header_name_ends_at_its_first_nul_and_is_utf8():
    assert messages.header_name(b"amcast.skip\0more") == "amcast.skip"
    assert messages.header_name(b"a\0\xff") == "a"
    assert messages.header_name(b"\xff\xfe") is None
    assert messages.header_name("né".encode()) == "né"


@pytest.mark.parametrize("name", ["amcast.x", "a\0b", "a\ufffd", "\ud800"])
def test_a_producer_writes_no_name_that_somebody_would_read_otherwise(name):
    with pytest.raises(UsageError, match="is refused"):
        messages.refuse_names([("fine", b""), (name, b"")])
