"""The desk of a node for bundles: takes them in, posts them, and says what became of them.

`submit` and `status` run on the server's event loop. `read`, `written` and `restored` are called on
the threads of the chains (`dependencies.BundleListener`).

    1. read, signature, set     `admission.read_signed`, of who may write in one chain; the plan
                                declares exactly this set
    2. judged                   `admission.admit`: by the configs of all chains, before any wait
    3. ready                    each chain takes envelopes, and in the set's log stand the markers
                                of the configs that judged it; where these change, 2. again
    4. posted, stored           one record in the log of the set: 200
    5. outcome                  by `read`: it counts, or is void, or is judged again from 2. on
    6. placed                   by `written`: its parts are in durable blocks

A bundle that is refused, or not stored, is forgotten; if Kafka did not say whether the record is
stored, it may count all the same, and the answer says so. After an outcome that calls for another
post (`chain/bundles/intake.py`) nobody waits for the answer any more: where the bundle is refused
now, its fate is void, with the reason of its last record.

Bundles for one set are posted in the order in which they were submitted. One lock guards all that
the threads share; nothing waits while it is held.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from multicast.errors import AmcastError
from ordering_osn.api.broadcast import forget
from ordering_osn.api.channels import BundleFate, FateKind, Refused, Status
from ordering_osn.api.metrics import Metrics
from ordering_osn.chain.bundles.bundle import Bundle
from ordering_osn.chain.bundles.intake import BundleIntake, IntakeFull
from ordering_osn.chain.bundles.log_records import (
    BundleRecord,
    ConfigMarker,
    encode_bundle_record,
)
from ordering_osn.chain.bundles.metadata import BundleMetadata
from ordering_osn.chain.bundles.restart import RestoredSet
from ordering_osn.chain.bundles.rule import (
    BundleCounts,
    BundleVoid,
    MarkerTaken,
    Outcome,
    VoidReason,
)
from ordering_osn.config.policies import SignedData
from ordering_osn.identity import Verification
from ordering_osn.node.bundles.admission import admit, read_signed, refuse_strangers
from ordering_osn.node.bundles.fates import BundleFates
from ordering_osn.node.chain_node import ChainNode
from ordering_osn.node.changes import Changes
from ordering_osn.node.outbox import Posts, started, stored
from ordering_osn.protos import Status as FabricStatus
from ordering_osn.wire.multichain_pb2 import BundleResponse

# How long a bundle waits for its chains and for the markers of their configs: some milliseconds as
# a rule. As `ingress.READY_S`, which waits for the same chains.
READY_S = 30.0
_IN_DOUBT = "The bundle may count all the same; sent again, it counts once."
_log = logging.getLogger("amcast.osn")


class BundleDesk:
    """Takes the bundles of one node's clients, and hears from its chains what became of them."""

    def __init__(
        self,
        chains: Mapping[str, ChainNode],
        posts: Posts,
        *,
        metrics: Metrics,
        clock: Callable[[], datetime],
        closed: Mapping[str, str],
        ready_s: float = READY_S,
        intake: BundleIntake | None = None,
        fates: BundleFates | None = None,
        encode: Callable[[BundleRecord], bytes] = encode_bundle_record,
    ) -> None:
        self._chains = chains
        self._closed = closed  # chains of this node that could not be opened, and why
        self._posts = posts
        self._encode = encode
        self._metrics = metrics
        self._clock = clock
        self._ready_s = ready_s
        self._lock = threading.Lock()
        self._intake = BundleIntake() if intake is None else intake
        self._fates = BundleFates() if fates is None else fates
        # By open bundle: the last offset of a void record of it. Several chains read each record.
        self._void_offsets: dict[bytes, int] = {}
        self._markers_changed = Changes[tuple[str, ...]]()
        self._fate_changed = Changes[bytes]()
        # On the event loop only.
        self._posting: defaultdict[tuple[str, ...], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._under_way: dict[bytes, asyncio.Task[None]] = {}
        self._again: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- what clients ask: on the event loop ----------------------------------------------------

    async def submit(self, raw: bytes) -> BundleResponse:
        """Take in a serialized bundle; see `channels.Channels.submit_bundle`."""
        self._loop = asyncio.get_running_loop()
        bundle_id = b""
        try:
            bundle, verified = read_signed(raw, self._refuse_strangers)
            bundle_id = bundle.id
            await self._take_in(bundle, verified)
            answer = BundleResponse(status=int(Status.SUCCESS), bundle_id=bundle_id)
        except Refused as refused:
            answer = BundleResponse(
                status=refused.status, info=refused.info, bundle_id=bundle_id, chain=refused.chain
            )
        self._metrics.bundles_processed.add(FabricStatus.Name(answer.status))
        return answer

    async def status(self, bundle_id: bytes, wait_s: float) -> BundleFate:
        """Give what is known of a bundle; wait for a final fate, for `wait_s` at most."""
        with self._fate_changed.watch(bundle_id) as changed:
            try:
                async with asyncio.timeout(wait_s):
                    while not (fate := self._fate(bundle_id)).final:
                        changed.clear()
                        if not self._fate(bundle_id).final:
                            await changed.wait()
            except TimeoutError:
                fate = self._fate(bundle_id)
        return fate

    async def log_end(self, chains: tuple[str, ...]) -> int:
        """Give the end of the log of exactly this set, in which all bundles of the set stand."""
        await self._refuse_undeclared(chains)
        self._nodes(chains)
        try:
            return await self._posts.end(chains)
        except AmcastError as error:
            raise Refused(Status.SERVICE_UNAVAILABLE, str(error)) from error

    def _fate(self, bundle_id: bytes) -> BundleFate:
        with self._lock:
            fate = self._fates.fate(bundle_id, frozenset(self._chains))
            bundle = self._intake.get(bundle_id)
        if bundle is None or fate.kind in (FateKind.ACCEPTED, FateKind.COMMITTED):
            return fate
        return BundleFate(FateKind.ACCEPTED, bundle.chains)

    # -- taking in ------------------------------------------------------------------------------

    async def _take_in(self, bundle: Bundle, verified: Verification) -> None:
        """Return when the bundle is stored, or known; raises `Refused`."""
        await self._refuse_undeclared(bundle.chains)
        nodes = self._nodes(bundle.chains)
        # From here to the start of the task nothing waits: so bundles keep their order.
        under_way = self._under_way.get(bundle.id)
        if under_way is None:
            if self._is_known(bundle.id):
                return
            configs = [node.config for node in nodes]
            stamps = admit(bundle, configs, now=self._clock(), verified=verified)
            try:
                with self._lock:
                    self._intake.take_in(bundle)
                    self._fates.revived(bundle.id)
            except IntakeFull as error:
                raise Refused(Status.SERVICE_UNAVAILABLE, str(error)) from error
            under_way = asyncio.create_task(self._post_first(bundle, stamps))
            under_way.add_done_callback(forget)
            self._under_way[bundle.id] = under_way
        # The task goes on where the client leaves; another client may wait for the same bundle.
        await asyncio.shield(under_way)

    def _refuse_strangers(self, chains: Sequence[str], signed: SignedData) -> None:
        configs = {name: self._chains[name].config for name in chains if name in self._chains}
        if not configs:
            self._nodes(chains)  # says which chain this node does not run
        refuse_strangers(configs, signed, now=self._clock())

    def _is_open(self, bundle_id: bytes) -> bool:
        with self._lock:
            return self._intake.get(bundle_id) is not None

    def _is_known(self, bundle_id: bytes) -> bool:
        with self._lock:
            return self._intake.get(bundle_id) is not None or self._fates.has_counted(bundle_id)

    async def _refuse_undeclared(self, chains: tuple[str, ...]) -> None:
        """Raise `Refused` unless the set has a log of its own.

        The log of a superset does not do: records there that are for a part of the set never count.
        """
        try:
            declared = await self._posts.declares(chains)
        except AmcastError as error:
            raise Refused(Status.SERVICE_UNAVAILABLE, str(error)) from error
        if not declared:
            names = ", ".join(f'"{name}"' for name in chains)
            raise Refused(
                Status.NOT_FOUND,
                f"the set {'+'.join(chains)} is not declared; add [{names}] to 'destinations' in "
                f"the interest file (to 'sets' in a chain file), then run "
                f"'amcast topology plan --from-cluster' and 'amcast topology apply'",
            )

    def _nodes(self, chains: Sequence[str]) -> list[ChainNode]:
        """Give the chains, in order; raises `Refused` where this node does not run one."""
        nodes = []
        for name in chains:
            node = self._chains.get(name)
            if node is None and name in self._closed:
                raise Refused(Status.SERVICE_UNAVAILABLE, self._closed[name], name)
            if node is None:
                raise Refused(
                    Status.NOT_FOUND,
                    f"this node does not run channel {name!r}; send the bundle to a node that runs "
                    f"all of its channels",
                    name,
                )
            nodes.append(node)
        return nodes

    # -- posting: bundles of a set in their order -----------------------------------------------

    async def _post_first(self, bundle: Bundle, stamps: tuple[int, ...]) -> None:
        try:
            await self._post(bundle, stamps)
        except BaseException:
            self._forget(bundle.id)
            raise
        finally:
            del self._under_way[bundle.id]

    async def _post_again(self, bundle: Bundle, reason: VoidReason | None, chain: str) -> None:
        """Judge a bundle at the present configs and post it; where that fails, it is void."""
        try:
            nodes = self._nodes(bundle.chains)
            stamps = admit(bundle, [node.config for node in nodes], now=self._clock())
            await self._post(bundle, stamps)
        except Refused as error:
            _log.info("bundle %s is not posted again: %s", bundle.id.hex(), error)
            self._give_up(bundle, reason, chain)
        except BaseException:  # a defect, or the node stops
            self._give_up(bundle, reason, chain)
            raise

    async def _post(self, bundle: Bundle, stamps: tuple[int, ...]) -> None:
        """Post a judged bundle as soon as it can count, and wait until it is stored.

        Returns at once where the bundle is settled meanwhile. Raises `Refused`.
        """
        deadline = asyncio.get_running_loop().time() + self._ready_s
        async with self._posting[bundle.chains]:
            stamps = await self._markers_stand(bundle, stamps, deadline)
            record = self._encode(BundleRecord(bundle, stamps))
            with self._lock:
                if self._intake.get(bundle.id) is None:
                    return
                # BEFORE the record can be read: the outcome must find the bundle posted.
                self._intake.posted(bundle.id)
            outcome = await started(self._posts, record, bundle.chains)
        stored(await outcome, in_doubt=_IN_DOUBT)

    async def _markers_stand(
        self, bundle: Bundle, stamps: tuple[int, ...], deadline: float
    ) -> tuple[int, ...]:
        """Wait until all chains take envelopes and the markers of the stamps stand; give these.

        Where a config changes meanwhile, the bundle is judged again. Raises `Refused`.
        """
        nodes = self._nodes(bundle.chains)
        stamps, lacking = await self._judged(bundle, nodes, stamps, deadline)
        if not lacking:
            return stamps
        with self._markers_changed.watch(bundle.chains) as changed:
            unwatch = [node.watch(changed.set_from_any_thread) for node in nodes]
            try:
                while True:
                    changed.clear()
                    stamps, lacking = await self._judged(bundle, nodes, stamps, deadline)
                    if not lacking or not self._is_open(bundle.id):
                        return stamps
                    async with asyncio.timeout_at(deadline):
                        await changed.wait()
            except TimeoutError as error:
                raise Refused(
                    Status.SERVICE_UNAVAILABLE,
                    f"the log of {'+'.join(bundle.chains)} has no marker of the present config of "
                    f"channel {lacking!r}; check that a node runs it, and send the bundle again",
                    lacking,
                ) from error
            finally:
                for end in unwatch:
                    end()

    async def _judged(
        self,
        bundle: Bundle,
        nodes: Sequence[ChainNode],
        stamps: tuple[int, ...],
        deadline: float,
    ) -> tuple[tuple[int, ...], str]:
        """Wait until all chains take envelopes; judge by their configs where these changed.

        Gives the stamps, and the first chain whose marker does not stand yet; empty: none.
        """
        for node in nodes:
            left_s = deadline - asyncio.get_running_loop().time()
            await node.status.ready(left_s, bundles=True)
        configs = [node.config for node in nodes]
        if tuple(config.sequence for config in configs) != stamps:
            stamps = admit(bundle, configs, now=self._clock())
        return stamps, _lacking(nodes[0].markers(bundle.chains), bundle.chains, stamps)

    # -- what the chains report: on their threads -----------------------------------------------

    def read(self, chain: str, chains: tuple[str, ...], offset: int, outcome: Outcome) -> None:
        """See `BundleListener`; every chain of the set that the node runs reports each record."""
        match outcome:
            case MarkerTaken():
                self._metrics.markers_read.add(chain)
                self._markers_changed.notify(chains)
            case BundleCounts(bundle):
                self._metrics.bundles_counted.add(chain)
                with self._lock:
                    self._fates.counted(bundle.id, chains)
                    self._intake.read(outcome)
                    self._void_offsets.pop(bundle.id, None)
                self._settled(bundle.id, chains)
            case BundleVoid(bundle_id, reason):
                self._metrics.bundles_void.add(chain, reason.name)
                # A record in the log of another set says nothing about the bundle's own.
                if bundle_id and reason is not VoidReason.WRONG_CHAINS:
                    self._read_void(chains, offset, outcome)

    def _read_void(self, chains: tuple[str, ...], offset: int, outcome: BundleVoid) -> None:
        bundle_id, reason = outcome.bundle_id, outcome.reason
        with self._lock:
            is_open = self._intake.get(bundle_id) is not None
            if is_open:
                if offset <= self._void_offsets.get(bundle_id, -1):
                    return  # another chain has read this record, and maybe later ones
                self._void_offsets[bundle_id] = offset
            again = self._intake.read(outcome)
            settled = is_open and self._intake.get(bundle_id) is None
            if settled:
                self._void_offsets.pop(bundle_id, None)
            if reason is VoidReason.DUPLICATE:
                self._fates.counted(bundle_id, chains)
            elif settled or not is_open:
                final = settled or not reason.may_count_later
                self._fates.void(bundle_id, chains, reason, outcome.chain, final=final)
        if again is not None:
            self._start_again(again, reason, outcome.chain)
        else:
            self._settled(bundle_id, chains)

    def written(self, chain: str, block: int, parts: Sequence[BundleMetadata]) -> None:
        """See `BundleListener`."""
        for part in parts:
            self._placed(chain, part.chains, part.bundle_id, (block, part.index))

    def restored(self, chain: str, sets: Sequence[RestoredSet]) -> None:
        """See `BundleListener`; what stood in the log before that is not read any more."""
        for restored in sets:
            for place in restored.places:
                position = (place.block, place.index)
                self._placed(chain, restored.chains, place.bundle_id, position)
        with self._lock:
            again = self._intake.unread(chain)
        for bundle in again:
            self._start_again(bundle, None, "")

    def _placed(
        self, chain: str, chains: tuple[str, ...], bundle_id: bytes, place: tuple[int, int]
    ) -> None:
        with self._lock:
            self._fates.placed(bundle_id, chains, chain, place)
            self._intake.forget(bundle_id)  # it counts, also where the outcome was not read
            self._void_offsets.pop(bundle_id, None)
        self._settled(bundle_id, chains)

    # -- inside ---------------------------------------------------------------------------------

    def _settled(self, bundle_id: bytes, chains: tuple[str, ...]) -> None:
        """Wake who waits for the bundle's fate, and who waits in order to post it."""
        self._fate_changed.notify(bundle_id)
        self._markers_changed.notify(chains)

    def _forget(self, bundle_id: bytes) -> None:
        with self._lock:
            self._intake.forget(bundle_id)
            self._void_offsets.pop(bundle_id, None)

    def _start_again(self, bundle: Bundle, reason: VoidReason | None, chain: str) -> None:
        """Have the event loop judge a bundle again. From any thread."""
        self._metrics.bundles_reposted.add()
        loop = self._loop
        assert loop is not None, "only a bundle that was submitted is posted again"
        try:
            loop.call_soon_threadsafe(self._begin_again, bundle, reason, chain)
        except RuntimeError:  # the loop is closed: the node stops
            self._give_up(bundle, reason, chain)

    def _begin_again(self, bundle: Bundle, reason: VoidReason | None, chain: str) -> None:
        task = asyncio.ensure_future(self._post_again(bundle, reason, chain))
        self._again.add(task)
        task.add_done_callback(self._again.discard)

    def _give_up(self, bundle: Bundle, reason: VoidReason | None, chain: str) -> None:
        """Settle an open bundle as void; without a reason nothing is known of it any more."""
        with self._lock:
            if self._intake.get(bundle.id) is None:
                return
            self._intake.forget(bundle.id)
            self._void_offsets.pop(bundle.id, None)
            if reason is not None:
                self._fates.void(bundle.id, bundle.chains, reason, chain, final=True)
        self._fate_changed.notify(bundle.id)


def _lacking(
    markers: Sequence[ConfigMarker | None], chains: Sequence[str], stamps: Sequence[int]
) -> str:
    """Give the first chain whose newest marker is not of its stamp's config; empty: none."""
    for chain, marker, stamp in zip(chains, markers, stamps, strict=True):
        if marker is None or marker.sequence != stamp:
            return chain
    return ""
