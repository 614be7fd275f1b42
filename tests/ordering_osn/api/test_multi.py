"""BroadcastMulti and Status over gRPC: answers in order, refusals, rights, mutual TLS."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from ordering_osn.api.broadcast import serve_bundles
from ordering_osn.api.channels import BundleFate, FateKind, Refused
from ordering_osn.api.connection_errors import ConnectionLost
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.multi.signed_request import signed_request
from ordering_osn.api.seek import REQUEST_BYTES_MAX
from ordering_osn.chain.bundles.rule import VoidReason
from ordering_osn.wire.multichain_pb2 import (
    BundleResponse,
    DeliverMultiRequest,
    LogEndRequest,
    LogEndResponse,
    SignedRequest,
    StatusRequest,
    StatusResponse,
)
from tests.ordering_osn.helpers.chains import (
    MUTUAL_TLS,
    STRANGER,
    USER,
    USER_TLS,
    SmallChannel,
    SmallChannels,
    gathered,
    served,
)
from tests.ordering_osn.helpers.loops import becomes

BROADCAST, STATUS = "/amcast.osn.MultiChain/BroadcastMulti", "/amcast.osn.MultiChain/Status"
LOG_END = "/amcast.osn.MultiChain/LogEnd"
ID = b"i" * 32
COMMITTED = BundleFate(
    FateKind.COMMITTED, ("chain-a", "chain-b", "chain-c"), True, places={
        "chain-a": (5, 0), "chain-b": (7, 2),
    },
)  # fmt: skip


class BundleChannels(SmallChannels):
    """Answers each bundle by its bytes, and each status by `fates`, the later ones after a wait."""

    def __init__(self, *channels):
        super().__init__(*channels)
        self.fates = []
        self.waits = []
        self.first = asyncio.Event()
        self.bundles = []
        self.ends = []

    async def log_end(self, chains):
        self.ends.append(chains)
        if "chain-c" in chains:
            raise Refused(404, "the set is not declared")
        return 17

    async def submit_bundle(self, raw):
        self.bundles.append(raw)
        if raw == b"first":
            await self.first.wait()
        if raw == b"defect":
            raise RuntimeError("a defect")
        if raw == b"refused":
            answer = {"status": 403, "info": "no rights", "chain": "chain-b"}
            return BundleResponse(bundle_id=ID, **answer)
        return BundleResponse(status=200, bundle_id=raw)

    async def bundle_status(self, bundle_id, wait_s):
        assert bundle_id == ID
        self.waits.append(wait_s)
        return self.fates.pop(0) if len(self.fates) > 1 else self.fates[0]


@pytest.fixture
def channels(tmp_path):
    opened = [SmallChannel(tmp_path, name) for name in ("chain-a", "chain-b")]
    yield BundleChannels(*opened)
    for channel in opened:
        channel.store.close()


async def test_each_bundle_is_answered_in_order_and_a_refusal_ends_nothing(channels):
    async with served(channels) as client:
        answers = client.exchange(BROADCAST, [b"first", b"refused", b"last"], timeout_s=60.0)
        read = asyncio.create_task(gathered(answers))
        await becomes(lambda: len(channels.bundles) == 3)
        assert not read.done()  # the first is not answered, the others are in flight
        channels.first.set()
        first, refused, last = [BundleResponse.FromString(raw) for raw in await read]
    assert (first.status, first.bundle_id) == (200, b"first")
    assert (refused.status, refused.info, refused.chain) == (403, "no rights", "chain-b")
    assert (last.status, last.bundle_id, last.chain) == (200, b"last", "")


async def test_no_more_bundles_are_in_flight_than_the_limit(channels, monkeypatch):
    monkeypatch.setattr("ordering_osn.api.broadcast.IN_FLIGHT_BYTES_MAX", 8)

    class Stream:
        def __init__(self):
            self.left = [b"first", b"second", b"third", b"fourth"]
            self.written = []

        async def read(self):
            return self.left.pop(0) if self.left else None

        async def write(self, message):
            self.written.append(BundleResponse.FromString(message).bundle_id)

    stream = Stream()
    serving = asyncio.create_task(serve_bundles(channels, stream))
    for _ in range(20):
        await asyncio.sleep(0)
    assert channels.bundles == [b"first", b"second"]
    channels.first.set()
    await asyncio.wait_for(serving, 60.0)
    assert stream.written == [b"first", b"second", b"third", b"fourth"]


def test_a_defect_ends_its_stream_alone(runner, channels):
    async def ask():
        async with served(channels) as client:
            with pytest.raises(ConnectionLost, match="INTERNAL"):
                await gathered(client.exchange(BROADCAST, [b"defect"], timeout_s=60.0))
            return await gathered(client.exchange(BROADCAST, [b"next"], timeout_s=60.0))

    assert len(runner.run(ask())) == 1


def status(runner, channels, *, signer=USER, raw=None, wait_ms=0, bundle_id=ID, **options):
    """The answer to one request; `now` and `tls_hash` go into it, the rest to the server."""
    made = {name: options.pop(name) for name in ("now", "tls_hash") if name in options}
    request = raw or signed_request(
        signer, status=StatusRequest(bundle_id=bundle_id, wait_ms=wait_ms), **made
    )

    async def ask():
        async with served(channels, **options) as client:
            (answer,) = await gathered(client.exchange(STATUS, [request], timeout_s=60.0))
            return StatusResponse.FromString(answer)

    return runner.run(ask())


def test_a_committed_bundle_has_the_places_of_the_chains_that_the_sender_may_read(runner, channels):
    channels.fates = [COMMITTED]
    metrics = Metrics()
    answer = status(runner, channels, metrics=metrics)
    places = [(place.chain, place.block, place.index) for place in answer.committed.places]
    assert (answer.status, places) == (200, [("chain-a", 5, 0), ("chain-b", 7, 2)])
    assert list(answer.chains_not_covered) == ["chain-c"]
    name = ("amcast.osn.MultiChain", "Status")
    assert metrics.grpc_server_unary_requests_completed.value(*name, "OK") == 1


def test_each_fate_has_its_message(runner, channels):
    chains = ("chain-a", "chain-b")
    for fate, kind in (
        (BundleFate(), "unknown"),
        (BundleFate(FateKind.ACCEPTED, chains), "accepted"),
        (
            BundleFate(
                FateKind.VOID, chains, reason=VoidReason.STALE, void_chain="chain-b", final=True
            ),
            "void",
        ),
    ):
        channels.fates = [fate]
        answer = status(runner, channels)
        assert (answer.status, answer.WhichOneof("fate")) == (200, kind)
    assert (answer.void.reason, answer.void.chain) == (VoidReason.STALE, "chain-b")
    assert "not final" in answer.info


def test_only_a_fate_that_is_not_final_is_waited_for(runner, channels):
    channels.fates = [BundleFate(FateKind.ACCEPTED, ("chain-a", "chain-b")), COMMITTED]
    assert status(runner, channels, wait_ms=1500).WhichOneof("fate") == "committed"
    assert status(runner, channels, wait_ms=1500).WhichOneof("fate") == "committed"
    assert channels.waits == [0.0, 1.5, 0.0]


def test_what_is_wrong_with_a_request_is_refused_before_anything_is_looked_up(runner, channels):
    now = datetime.now(UTC)
    content = SignedRequest.FromString(signed_request(USER, status=StatusRequest(bundle_id=ID)))
    content.signature = USER.sign(b"something else")
    untagged = SignedRequest(content=content.content, signature=USER.sign(content.content))
    for expected, asked in (
        (400, {"raw": b"\xff\xff"}),
        (400, {"raw": bytes(REQUEST_BYTES_MAX + 1)}),
        (400, {"bundle_id": b"short"}),
        (400, {"wait_ms": 300_001}),
        (400, {"now": now - timedelta(minutes=16)}),
        (400, {"now": now + timedelta(minutes=16)}),
        (400, {"raw": signed_request(USER, deliver=DeliverMultiRequest())}),
        (403, {"raw": content.SerializeToString()}),
        (403, {"raw": untagged.SerializeToString()}),
        (403, {"signer": STRANGER}),
    ):
        answer = status(runner, channels, **asked)
        assert answer.status == expected, (asked, answer)
        assert answer.info
    assert channels.waits == []


def test_who_may_read_no_chain_of_the_bundle_learns_nothing(runner, channels):
    channels.fates = [BundleFate(FateKind.ACCEPTED, ("chain-c", "chain-d"))]
    answer = status(runner, channels, wait_ms=1500)
    assert (answer.status, answer.WhichOneof("fate")) == (403, None)
    assert not answer.chains_not_covered
    assert channels.waits == [0.0]


def test_under_mutual_tls_a_request_is_bound_to_the_certificate(runner, channels):
    channels.fates = [COMMITTED]
    both = {"tls": MUTUAL_TLS, "client_tls": USER_TLS, "name": "orderer.example.com"}
    assert status(runner, channels, **both).status == 400
    assert status(runner, channels, tls_hash=USER_TLS.tls_hash, **both).status == 200


# -- the end of a set's log ------------------------------------------------------------------------


def log_end(runner, channels, *chains, signer=USER, raw=None):
    request = raw or signed_request(signer, log_end=LogEndRequest(chains=chains))

    async def ask():
        async with served(channels) as client:
            (answer,) = await gathered(client.exchange(LOG_END, [request], timeout_s=60.0))
            return LogEndResponse.FromString(answer)

    return runner.run(ask())


def test_the_end_of_a_sets_log_is_given_to_a_reader_of_one_of_its_chains(runner, channels):
    answer = log_end(runner, channels, "chain-b", "chain-a")
    assert (answer.status, answer.info, answer.offset_next) == (200, "", 17)
    answer = log_end(runner, channels, "chain-a", "chain-c")
    assert (answer.status, answer.info) == (404, "the set is not declared")
    assert channels.ends == [("chain-a", "chain-b"), ("chain-a", "chain-c")]


def test_a_wrong_request_for_the_end_of_a_log_is_refused_before_it_is_looked_up(runner, channels):
    many = [f"chain-{number}" for number in range(65)]
    for status_expected, chains, asked in (
        (400, (), {"raw": b"\xff\xff"}),
        (400, (), {"raw": signed_request(USER, status=StatusRequest(bundle_id=ID))}),
        (400, (), {}),
        (400, ("chain-a",), {}),
        (400, ("chain-a", "chain-a"), {}),
        (400, many, {}),
        (403, ("chain-a", "chain-b"), {"signer": STRANGER}),
        (403, ("chain-x", "chain-y"), {}),
    ):
        answer = log_end(runner, channels, *chains, **asked)
        assert answer.status == status_expected, (chains, asked, answer)
        assert answer.info
    assert channels.ends == []
