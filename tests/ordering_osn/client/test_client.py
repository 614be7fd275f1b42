"""`Client`: what it does with each answer, and when nodes are busy, gone or silent."""

import asyncio

import pytest

from multicast.errors import TimedOut, UsageError
from multicast.local.broker import free_ports
from ordering_osn.api.connection_errors import ConnectionLost, MethodMissing, lost
from ordering_osn.api.grpc_client import is_own_machine
from ordering_osn.chain.bundles.bundle import BadBundle
from ordering_osn.chain.bundles.rule import VoidReason
from ordering_osn.client import (
    BundleIsVoid,
    BundlePlace,
    BundleRefused,
    Client,
    RequestRefused,
    Submitted,
    node_turns,
)
from ordering_osn.client.messages import BadAnswer, read_delivered, read_fate, read_submitted
from tests.ordering_osn.helpers.chains import USER, gathered, transaction
from tests.ordering_osn.helpers.multi import (
    AB,
    ScriptedNode,
    World,
    alone,
    client_of,
    committed,
    entry_of,
    fresh,
    void,
)

UNKNOWN, ACCEPTED = {"unknown": {}}, {"accepted": {}}


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 120))


def raised(kind, scenario):
    with pytest.raises(kind) as caught:
        run(scenario)
    return caught.value


async def with_client(nodes, call, **options):
    async with client_of(*nodes, **options) as client:
        return await call(client)


def calling(nodes, call, **options):
    """Run one call of a client of these nodes."""
    return with_client(nodes, call, **options)


# -- a bundle --------------------------------------------------------------------------------------


def test_a_bundle_is_made_of_envelopes_and_signed_by_the_client():
    parts = {chain: transaction(chain=chain) for chain in ("chain-b", "chain-a")}
    made = Client(["127.0.0.1:1"], USER).bundle(parts, expiry=9)
    assert made.chains == AB
    assert made.expiry == 9
    assert made.submitter == USER.creator
    assert {part.chain: part.envelope for part in made.parts} == parts


def test_an_envelope_for_another_chain_is_refused_before_anything_is_sent():
    parts = {"chain-a": transaction(), "chain-b": transaction(chain="chain-c")}
    with pytest.raises(BadBundle, match="is an envelope for channel 'chain-c'"):
        Client(["127.0.0.1:1"], USER).bundle(parts)


# -- submit ----------------------------------------------------------------------------------------


def test_an_accepted_bundle_is_answered_200():
    world, made = World(), fresh()
    node = ScriptedNode(world)
    answer = run(calling([node], lambda client: client.submit(made)))
    assert answer == Submitted(200, "", made.id, "")
    assert answer.accepted
    assert world.taken == [made.id]


def test_a_refused_bundle_is_answered_once_with_its_chain_and_no_other_node_is_asked():
    nodes = [ScriptedNode(World(), ["refuse"]), ScriptedNode(World())]
    made = fresh()
    answer = run(calling(nodes, lambda client: client.submit(made)))
    assert answer == Submitted(403, "no writer", made.id, "chain-b")
    assert [len(node.received) for node in nodes] == [1, 0]


@pytest.mark.parametrize("trouble", ["busy", "break", "take and break"])
def test_the_next_node_gets_the_same_bundle(trouble):
    world, made = World(), fresh()
    nodes = [ScriptedNode(world, [trouble]), ScriptedNode(world)]
    assert run(calling(nodes, lambda client: client.submit(made))).accepted
    assert [node.received for node in nodes] == [[made.id], [made.id]]
    assert world.taken == [made.id]


def test_a_single_node_that_is_busy_for_a_while_is_asked_again():
    node = ScriptedNode(World(), ["busy", "break", "busy"])
    made = fresh()
    assert run(calling([node], lambda client: client.submit(made), retry_s=60.0)).accepted
    assert node.received == [made.id] * 4


def test_nodes_that_stay_busy_give_503_in_bounded_time():
    node = ScriptedNode(World(), ["busy"] * 1000)
    answer = run(calling([node], lambda client: client.submit(fresh())))
    assert (answer.status, answer.info) == (503, "wait")
    assert 2 <= len(node.received) < 1000


def test_nodes_that_are_gone_raise_an_error_that_is_not_definite():
    async def submit():
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        async with Client(addresses, USER, retry_s=0.1) as client:
            await client.submit(fresh())

    error = raised(ConnectionLost, submit())
    assert error.retriable
    assert not error.definite


def test_a_status_that_grpc_has_overwritten_is_not_shown():
    says = str(lost("node:7050", "INTERNAL", "Internal error from Core", None))
    assert says == "node:7050: it ended the call; gRPC's client lost the reason"


def test_a_silent_node_counts_as_lost():
    world, made = World(), fresh()
    nodes = [ScriptedNode(world, ["silent"]), ScriptedNode(world)]
    call = calling(nodes, lambda client: client.submit(made), answer_s=0.5, retry_s=60.0)
    assert run(call).accepted
    alone_and_silent = [ScriptedNode(world, ["silent"] * 100)]
    call = calling(alone_and_silent, lambda client: client.submit(made), answer_s=0.2, retry_s=0.1)
    raised(TimedOut, call)


def test_an_answer_to_another_bundle_is_an_error():
    node = ScriptedNode(World(), ["other"])
    error = raised(BadAnswer, calling([node], lambda client: client.submit(fresh())))
    assert "instead of" in str(error)


@pytest.mark.parametrize(
    "read", [lambda raw: read_submitted(raw, bytes(32)), read_fate, read_delivered]
)
def test_an_answer_that_cannot_be_decoded_is_an_error(read):
    with pytest.raises(BadAnswer, match="the node's answer cannot be decoded"):
        read(b"\xff")


# -- fates -----------------------------------------------------------------------------------------


def waiting(fates, *, timeout_s=60.0, **node_script):
    world, made = World(), fresh()
    world.fates[made.id] = fates
    node = ScriptedNode(world, **node_script)
    return calling([node], lambda client: client.wait(made.id, timeout_s)), made, node


def test_the_places_of_a_committed_bundle():
    call, made, node = waiting([UNKNOWN, ACCEPTED, committed(*AB)])
    done = run(call)
    assert done.bundle_id == made.id
    assert done.places == (BundlePlace("chain-a", 7, 1), BundlePlace("chain-b", 7, 1))
    assert len(node.requests) == 3
    assert node.requests[0].status.bundle_id == made.id
    assert 0 < node.requests[0].status.wait_ms <= 60_000


@pytest.mark.parametrize("reason", [reason for reason in VoidReason if reason.name != "DUPLICATE"])
def test_a_void_bundle_raises_its_reason_and_chain(reason):
    call, made, _ = waiting(void(reason.name, "chain-b"))
    error = raised(BundleIsVoid, call)
    assert (error.reason, error.chain) == (reason, "chain-b")
    assert error.retriable == reason.may_count_later
    assert made.id.hex() in str(error)


def test_a_duplicate_counted_before_so_its_places_are_awaited():
    call, _, _ = waiting([void("DUPLICATE"), committed(*AB)])
    assert len(run(call).places) == 2


def test_a_fate_that_does_not_come_is_a_time_out():
    call, _, _ = waiting(ACCEPTED, timeout_s=0.5)
    error = raised(TimedOut, call)
    assert "may still count" in str(error)


def test_who_may_not_read_is_refused():
    call, _, _ = waiting(ACCEPTED, statuses=["forbid"])
    error = raised(RequestRefused, call)
    assert (error.status, error.info) == (403, "no reader")


def test_submit_and_wait_raises_a_refusal():
    node = ScriptedNode(World(), ["refuse"])
    error = raised(BundleRefused, calling([node], lambda c: c.submit_and_wait(fresh(), 60.0)))
    assert (error.status, error.chain) == (403, "chain-b")
    assert error.definite


def test_a_bundle_that_was_lost_with_its_node_is_submitted_again():
    lost, world, made = World(), World(), fresh()
    nodes = [ScriptedNode(lost, statuses=["break"] * 100), ScriptedNode(world)]
    done = run(calling(nodes, lambda client: client.submit_and_wait(made, 60.0)))
    assert done.places
    assert [node.received for node in nodes] == [[made.id], [made.id]]


# -- the end of a log, and expiries ----------------------------------------------------------------


def test_an_expiry_is_counted_from_the_end_of_the_log():
    nodes = [ScriptedNode(World(), statuses=["break"]), ScriptedNode(World())]
    assert run(calling(nodes, lambda c: c.log_end(("chain-b", "chain-a")), retry_s=60.0)) == 40
    for count, last in ((1, 40), (10, 49)):
        assert run(calling([ScriptedNode(World())], lambda c, n=count: c.expiry(AB, n))) == last


@pytest.mark.parametrize("count", [0, -1])
def test_a_bundle_expires_in_one_record_at_least(count):
    node = ScriptedNode(World())
    error = raised(UsageError, calling([node], lambda client: client.expiry(AB, count)))
    assert "at least 1 record" in str(error)
    assert node.requests == []


# -- deliver ---------------------------------------------------------------------------------------


def entries(count=6):
    made = [fresh() for _ in range(count // 2)]
    return [each for one in made for each in (alone("chain-a", one.id), entry_of(one))]


def delivered(nodes, start="oldest", **options):
    return run(calling(nodes, lambda client: gathered(client.deliver(AB, start)), **options))


def key(entry):
    return entry.bundle_id or entry.parts[0].envelope


def test_entries_have_their_parts_and_places():
    made = fresh()
    world = World(entries=[alone("chain-b"), entry_of(made)])
    node = ScriptedNode(world)
    single, bundled = delivered([node])
    assert single.bundle_id == b""
    assert single.chains == ("chain-b",)
    assert bundled.bundle_id == made.id
    assert bundled.chains == AB
    assert [part.place for part in bundled.parts] == [BundlePlace(chain, 3, 0) for chain in AB]
    assert [part.envelope for part in bundled.parts] == [part.envelope for part in made.parts]
    (request,) = node.requests
    assert tuple(request.deliver.chains) == AB


@pytest.mark.parametrize("trouble", ["break", "busy"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_stream_that_breaks_goes_on_behind_its_last_entry(trouble, count):
    world = World(entries=entries())
    expected = [key(entry) for entry in delivered([ScriptedNode(world)])]
    first = ScriptedNode(world, streams=[(count, trouble)])
    second = ScriptedNode(world, streams=[(1, trouble), (0, trouble)])
    taken = delivered([first, second], retry_s=60.0)
    assert [key(entry) for entry in taken] == expected


def test_a_refused_stream_raises_at_once():
    nodes = [ScriptedNode(World(), streams=[(0, "forbid")]), ScriptedNode(World())]
    error = raised(RequestRefused, calling(nodes, lambda c: gathered(c.deliver(AB))))
    assert error.status == 403
    assert nodes[1].requests == []


def test_nodes_that_only_break_streams_off_raise_in_bounded_time():
    node = ScriptedNode(World(), streams=[(0, "break")] * 1000)
    raised(ConnectionLost, calling([node], lambda client: gathered(client.deliver(AB))))
    assert 2 <= len(node.requests) < 1000


def test_nodes_that_can_be_reached_may_break_off_idle_streams_for_longer(monkeypatch):
    monkeypatch.setattr(node_turns, "_WORKED_S", 0.0)
    monkeypatch.setattr(node_turns, "PAUSE_S", 0.01)
    world = World(entries=entries())
    expected = [key(entry) for entry in delivered([ScriptedNode(world)])]
    node = ScriptedNode(world, streams=[(0, "break")] * 5)
    assert [key(entry) for entry in delivered([node], retry_s=0.001)] == expected
    assert len(node.requests) == 6


def test_nodes_that_can_be_reached_and_only_say_503_end_a_stream_in_bounded_time(monkeypatch):
    monkeypatch.setattr(node_turns, "_WORKED_S", 0.0)
    node = ScriptedNode(World(entries=entries()), streams=[(0, "busy")] * 1000)
    with pytest.raises(RequestRefused):
        delivered([node])
    assert 2 <= len(node.requests) < 1000


def test_another_start_is_refused():
    call = calling([ScriptedNode(World())], lambda client: gathered(client.deliver(AB, "begin")))
    assert "oldest, newest" in str(raised(UsageError, call))


@pytest.mark.parametrize(("stop", "ends"), [("newest", True), ("never", False)])
def test_a_stream_ends_at_the_newest_entry_or_never(stop, ends):
    node = ScriptedNode(World(entries=entries()))
    assert len(run(calling([node], lambda c: gathered(c.deliver(AB, stop=stop))))) == 6
    (request,) = node.requests
    assert request.deliver.HasField("stop") == ends


def test_another_stop_is_refused():
    call = calling([ScriptedNode(World())], lambda c: gathered(c.deliver(AB, stop="7")))
    assert "newest or never" in str(raised(UsageError, call))


def test_nodes_without_the_service_are_asked_once_each():
    class Old(ScriptedNode):
        SERVICE = "amcast.osn.Receipts"

    call = calling([Old(World())], lambda client: client.submit(fresh()), retry_s=10_000.0)
    error = raised(MethodMissing, call)
    assert "older version" in str(error)
    assert not error.retriable
    world, made = World(), fresh()
    mixed = [Old(World()), ScriptedNode(world, ["busy"])]
    assert run(calling(mixed, lambda client: client.submit(made), retry_s=60.0)).accepted
    assert world.taken == [made.id]


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("127.0.0.1:7050", True),
        ("127.9.9.9:1", True),
        ("localhost:7050", True),
        ("[::1]:7050", True),
        ("10.0.0.1:7050", False),
        ("orderer.example.com:7050", False),
    ],
)
def test_no_proxy_is_asked_for_what_is_on_this_machine(address, own):
    assert is_own_machine(address) == own
