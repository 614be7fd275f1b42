"""The core of a chain: stale records, reposts and replays."""

import pytest

from ordering_osn.chain.actions import Cause, Ignore, Repost
from ordering_osn.chain.records import Regular, RegularKind, TimeToCut, decode
from ordering_osn.chain.state import state_from
from ordering_osn.protos import Envelope
from tests.ordering_osn.helpers.cores import (
    Stepped,
    config,
    creation,
    genesis,
    made,
    metadata,
    normal,
    payload_data,
    rules,
    sealed,
    update,
)

SPANNING = "chain-a+chain-b"
AT_ONE = rules(messages_max=1, sequence=1)


def causes(actions):
    return [action.counted_as for action in actions]


# -- stale records and their copies -----------------------------------------------------------


def test_k21_a_stale_config_that_is_invalid_now_makes_no_block():
    stepped = Stepped(rules(sequence=1, refuses=[payload_data(update("c"))]))

    assert causes(stepped.config("c", seq=0)) == [Cause.INVALID]
    assert not stepped.writes
    assert stepped.chain.ingress_open


@pytest.mark.parametrize("original", [1, 2, 3])
def test_k23_a_copy_of_what_was_processed_is_dropped(original):
    stepped = Stepped(AT_ONE, position=5, last_original=3)

    assert stepped.normal("a", original=original) == (
        Ignore(f"a copy of record {original}", Cause.COPY),
    )
    assert not stepped.writes


def test_k24_the_last_original_stays_with_messages_that_have_none():
    stepped = Stepped(rules(messages_max=2), position=5)
    stepped.normal("a", original=4)
    stepped.normal("b")

    assert stepped.named == [["a", "b"]]
    assert metadata(stepped.writes[0]) == (7, 4, 0)


def test_k25_a_stale_message_that_is_invalid_now_is_dropped():
    stepped = Stepped(rules(messages_max=1, sequence=1, refuses=[b"a"]))

    assert causes(stepped.normal("a", seq=0)) == [Cause.INVALID]
    assert not stepped.writes
    assert not stepped.chain.pending


def test_k26_a_stale_message_that_is_valid_is_posted_again_and_ordered_when_read_back():
    stepped = Stepped(AT_ONE, position=4)

    (again,) = stepped.normal("a", seq=0)

    assert isinstance(again, Repost)
    assert decode(again.raw) == Regular(normal("a"), 1, RegularKind.NORMAL, 5)
    assert not stepped.writes
    assert stepped.chain.ingress_open
    stepped.step(again.raw)
    assert stepped.named == [["a"]]
    assert metadata(stepped.writes[0]) == (6, 5, 0)
    assert causes(stepped.step(again.raw)) == [Cause.COPY], "another node's"


def test_k27_a_config_that_was_processed_is_dropped():
    stepped = Stepped(AT_ONE, position=5, last_original=3)

    assert causes(stepped.config("c", original=3)) == [Cause.COPY]
    assert not stepped.writes


def test_k30_ingress_is_closed_until_the_config_is_read_back():
    stepped = Stepped(AT_ONE, position=4)

    (again,) = stepped.config("c", seq=0)

    assert decode(again.raw) == Regular(config(2, update("c")), 1, RegularKind.CONFIG, 5)
    assert not stepped.chain.ingress_open
    stepped.normal("a")
    assert not stepped.chain.ingress_open
    assert metadata(stepped.writes[0]) == (6, 0, 5)
    stepped.step(again.raw)
    assert stepped.chain.ingress_open
    assert stepped.named == [["a"], ["config 2"]]
    assert metadata(stepped.writes[1]) == (7, 5, 5)


@pytest.mark.parametrize("sequence", [1, 9])
def test_what_no_node_let_in_is_judged_where_it_is_read(sequence):
    """Not only nodes can write to the log; such a record names any config as its own."""
    stepped = Stepped(rules(sequence=1, refuses=[b"a", payload_data(update("c"))]))

    assert causes(stepped.normal("a", seq=sequence)) == [Cause.INVALID]
    assert causes(stepped.config("c", seq=sequence)) == [Cause.INVALID]
    assert not stepped.writes
    assert not stepped.chain.pending


def test_a_config_that_another_node_posted_again_is_adopted():
    stepped = Stepped(rules(sequence=1, expired=[payload_data(update("c"))]))
    stepped.config("c", seq=0)
    stepped.config("c", original=1)

    assert stepped.named == [["config 2"]]
    assert metadata(stepped.writes[0]) == (2, 1, 1)
    assert stepped.chain.ingress_open


def test_a_copy_that_is_stale_again_is_posted_again_once():
    """Fabric's judges every node's copy, and each comes back from every node."""
    stepped = Stepped(AT_ONE)
    (again,) = stepped.normal("a", seq=0)
    stepped.config("c")

    (third,) = stepped.step(again.raw)

    assert decode(third.raw) == Regular(normal("a"), 2, RegularKind.NORMAL, 3)
    assert causes(stepped.step(again.raw)) == [Cause.COPY], "another node's"
    stepped.step(third.raw)
    assert stepped.named == [["config 2"], ["a"]]


def test_a_config_that_is_stale_again_keeps_ingress_closed():
    stepped = Stepped(AT_ONE)
    (again,) = stepped.config("c", seq=0)
    stepped.config("d")

    (third,) = stepped.step(again.raw)

    assert decode(third.raw) == Regular(config(3, update("c")), 2, RegularKind.CONFIG, 3)
    assert not stepped.chain.ingress_open
    stepped.step(third.raw)
    assert stepped.chain.ingress_open
    assert stepped.named == [["config 2"], ["config 3"]]


def test_a_config_that_comes_back_invalid_opens_ingress():
    """Fabric's stays closed for ever: nothing that it waits for comes."""
    stepped = Stepped(AT_ONE)
    (again,) = stepped.config("c", seq=0)
    stepped.config("d", refuses=[payload_data(update("c")).decode()])
    assert not stepped.chain.ingress_open

    assert causes(stepped.step(again.raw)) == [Cause.INVALID]
    assert stepped.chain.ingress_open
    stepped.normal("a")
    assert metadata(stepped.writes[1]) == (4, 1, 1), "also at a node that starts here"


@pytest.mark.parametrize("name", ["normal", "config"])
def test_a_record_of_a_config_to_come_is_current(name):
    stepped = Stepped(AT_ONE)
    if name == "normal":
        stepped.normal("a", seq=7)
    else:
        stepped.step(Regular(config(2, update("c")), 7, RegularKind.CONFIG))

    assert len(stepped.writes) == 1


# -- configs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [0, 1, 3])
def test_a_config_that_is_not_the_next_one_is_refused_and_cuts_nothing(sequence):
    stepped = Stepped(rules(sequence=1))
    stepped.normal("a")

    assert causes(stepped.step(Regular(config(sequence, update("c")), 1, RegularKind.CONFIG))) == [
        Cause.INVALID
    ]
    assert not stepped.writes
    assert stepped.chain.pending == 1
    assert stepped.sequence == 1


def test_of_two_configs_made_at_once_the_second_is_judged_again():
    stepped = Stepped(rules())
    stepped.config("c")
    (again,) = stepped.config("d", seq=0)
    stepped.step(again.raw)

    assert stepped.named == [["config 1"], ["config 2"]]
    assert [write.last_config for write in stepped.writes] == [1, 2]


def test_a_config_update_that_two_nodes_were_told_is_ordered_once():
    stepped = Stepped(rules())
    stepped.config("c")

    assert causes(stepped.config("c", seq=0)) == [Cause.REPLAYED]
    assert stepped.chain.ingress_open


def test_a_config_takes_effect_with_the_next_record():
    stepped = Stepped(rules(messages_max=10))
    stepped.config("c", messages_max=2)
    for name in "abc":
        stepped.normal(name)

    assert stepped.named == [["config 1"], ["a", "b"]]
    assert stepped.chain.rules.parameters.messages_max == 2
    assert [write.last_config for write in stepped.writes] == [1, 1]


def test_a_creation_stands_alone_and_is_no_config_of_its_channel():
    stepped = Stepped(rules())
    stepped.normal("a")
    stepped.step(Regular(creation(update("new")), 0, RegularKind.CONFIG))

    assert stepped.named == [["a"], ["creation"]]
    assert [(w.config, w.creates, w.last_config) for w in stepped.writes] == [
        (False, False, 0),
        (False, True, 0),
    ]
    assert stepped.sequence == 0


# -- without the capability -------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(RegularKind))
def test_without_the_capability_a_stale_message_is_judged_and_ordered_at_once(kind):
    stepped = Stepped(rules(messages_max=1, sequence=1, resubmission=False, refuses=[b"bad"]))

    assert causes(stepped.normal("bad", seq=0, kind=kind)) == [Cause.INVALID]
    stepped.normal("a", seq=0, kind=kind)
    stepped.config("c", kind=kind)

    assert stepped.named == [["a"], ["config 2"]]


def test_without_the_capability_the_config_is_ordered_as_it_was_posted():
    stepped = Stepped(rules(resubmission=False))
    posted = config(1, update("c"))
    stepped.step(Regular(posted, 0, RegularKind.CONFIG))

    assert list(stepped.writes[0].block.data.data) == [posted]


def test_without_the_capability_a_config_update_is_refused():
    stepped = Stepped(rules(resubmission=False))

    assert causes(stepped.step(Regular(update("c"), 0, RegularKind.NORMAL))) == [Cause.MISPLACED]


# -- what none of ours posts ------------------------------------------------------------------


FORGED = {
    "a config as a normal message": Regular(config(2, update("c")), 1, RegularKind.NORMAL),
    "a creation as a normal message": Regular(creation(update("c")), 1, RegularKind.NORMAL),
    "an update as a normal message": Regular(update("c"), 1, RegularKind.NORMAL),
    "an update as a config": Regular(update("c"), 1, RegularKind.CONFIG),
    "a captured request to read": Regular(
        made("seek", b"", kind="DELIVER_SEEK_INFO"), 1, RegularKind.NORMAL
    ),
    "a normal message as a config": Regular(normal("a"), 1, RegularKind.CONFIG),
    "a copy of a record to come": Regular(normal("a"), 1, RegularKind.NORMAL, 2**63 - 1),
    "a copy of itself": Regular(normal("a"), 1, RegularKind.NORMAL, 3),
    "a copy of less than nothing": Regular(normal("a"), 1, RegularKind.NORMAL, -1),
    "one of another chain": Regular(normal("a", channel="chain-b"), 1, RegularKind.NORMAL),
    "one of several chains": Regular(normal("a", channel=SPANNING), 1, RegularKind.NORMAL),
}


@pytest.mark.parametrize("row", FORGED)
def test_what_none_of_ours_posts_is_refused_and_leaves_no_mark(row):
    stepped = Stepped(AT_ONE, position=2)

    assert causes(stepped.step(FORGED[row])) == [Cause.MISPLACED]

    stepped.normal("b", original=1)
    assert stepped.named == [["b"]]
    assert metadata(stepped.writes[0]) == (4, 1, 0)
    assert stepped.chain.ingress_open


def reversed_fields(raw):
    """The same envelope with its signature in front of its payload: libraries read it alike."""
    envelope = Envelope.FromString(raw)
    envelope.ClearField("payload")
    signature = envelope.SerializeToString()
    return signature + raw[: len(raw) - len(signature)]


@pytest.mark.parametrize(
    "spoil",
    [reversed_fields, lambda raw: raw + b"\x12\0", lambda raw: raw + b"\xa2\6\1x"],
    ids=["another order", "a field twice", "a field that nobody signed"],
)
def test_an_envelope_that_is_not_payload_and_signature_alone_is_in_no_block(spoil):
    """No ingress of ours posts it; Fabric's peers would stay for ever at a block with most."""
    stepped = Stepped(rules(messages_max=1))
    raw = spoil(normal("a"))
    assert Envelope.FromString(raw).payload == Envelope.FromString(normal("a")).payload

    assert causes(stepped.normal("a", envelope=raw)) == [Cause.MALFORMED]
    assert stepped.named == []


# -- the window -------------------------------------------------------------------------------


def test_a_transaction_that_is_pending_is_not_ordered_again():
    stepped = Stepped(rules(messages_max=2))
    stepped.normal("a")

    assert causes(stepped.normal("a")) == [Cause.REPLAYED]
    stepped.normal("b")
    assert stepped.named == [["a", "b"]]


def test_a_stale_transaction_that_stands_in_a_block_is_not_posted_again():
    stepped = Stepped(rules(messages_max=1, sequence=1))
    stepped.normal("a")

    assert causes(stepped.normal("a", seq=0)) == [Cause.REPLAYED]


def test_a_copy_of_what_was_sent_anew_meanwhile_is_not_ordered_again():
    stepped = Stepped(AT_ONE)
    (again,) = stepped.normal("a", seq=0)
    stepped.normal("a")

    assert causes(stepped.step(again.raw)) == [Cause.REPLAYED]
    assert stepped.named == [["a"]]


def test_the_window_holds_the_newest_transactions_and_no_more():
    stepped = Stepped(rules(messages_max=1), window_max=3)
    for name in "abcd":
        stepped.normal(name)

    assert causes(stepped.normal("b")) == [Cause.REPLAYED]
    assert stepped.normal("a"), "it left the window"
    assert stepped.named == [["a"], ["b"], ["c"], ["d"], ["a"]]


def test_a_transaction_is_found_by_its_id_once_it_stands_in_a_block():
    stepped = Stepped(rules(messages_max=2))
    for name in "abc":
        stepped.normal(name)
    (write,) = stepped.writes

    assert [stepped.chain.find(one) for one in write.transactions] == [(1, 0), (1, 1)]
    assert stepped.chain.find("ff") is None
    stepped.step(TimeToCut(2))
    assert stepped.chain.find(stepped.writes[1].transactions[0]) == (2, 0)


def test_a_window_that_the_blocks_do_not_fill_is_refused():
    stepped = Stepped(rules(messages_max=2))
    for name in "abcd":
        stepped.normal(name)
    last, before = [sealed(write) for write in reversed(stepped.writes)]

    assert state_from([last, before], window_max=4).window[0][1:] == (1, 0)
    assert state_from([last, before], window_max=3).window[0][1:] == (1, 1)
    with pytest.raises(ValueError, match="5 needed"):
        state_from([last, before], window_max=5)
    with pytest.raises(ValueError, match="not the one before"):
        state_from([last, genesis()], window_max=5)
