"""One chain at one node: follows the chain's order stream and writes its blocks.

The shell around the core, `chain.Chain`. One thread polls the stream, gives each record to
`Chain.step`, and carries out the actions that it returns. No rule about blocks is in this file.
The parts:

    chain_status   whether the loop runs, and why not; the request to stop
    block_writer   Write -> a durable block
    own_records    Repost, time-to-cut and probe -> records in the chain's own log
    cut_timer      when a time-to-cut is due
    order_watch    whether the order moves
    checkpoint     how far an idle chain has read
    resume         the state of the core, from the ledger
    catch_up       verifies the blocks that peers have and this node has not
    changes        the clients that wait for a transaction

Invariant: the ledger's last block says from where the stream is read on (or, where nothing is
pending, a later idle checkpoint does). All that is in memory can be dropped at any moment and is
rebuilt from there, at a start and after a gap.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from multicast.consuming.batches import Batch
from multicast.consuming.consumer import Consumer
from multicast.consuming.entries_read import ConsumerEntries
from multicast.errors import (
    AccessDenied,
    AmcastError,
    ClusterUnreachable,
    Conflict,
    TimedOut,
    Trimmed,
    Truncated,
    UsageError,
)
from ordering_osn.chain.actions import Action, Ignore, Refuse, Repost, SetOutcome, Write
from ordering_osn.chain.bundles.log_records import ConfigMarker
from ordering_osn.chain.chain import Chain, RecordPlace
from ordering_osn.chain.state import StreamPosition
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.ledger.windows import ledger_sets
from ordering_osn.node.block_writer import BlockWriter
from ordering_osn.node.catch_up import (
    ForgedBlock,
    Leaders,
    VerifiedBlock,
    all_of,
    copy_blocks,
)
from ordering_osn.node.chain_status import ChainStatus, Stopped
from ordering_osn.node.changes import Changes
from ordering_osn.node.checkpoint import CheckpointFile
from ordering_osn.node.cut_timer import CutTimer
from ordering_osn.node.dependencies import Dependencies
from ordering_osn.node.filters import ChannelRules
from ordering_osn.node.joining import note_topic, refuse_other_topic
from ordering_osn.node.kafka_connection import CursorAfter
from ordering_osn.node.order_watch import OrderWatch
from ordering_osn.node.own_records import OwnRecords
from ordering_osn.node.resume import (
    NoWayBack,
    config_in_force,
    newest_block,
    resumed_state,
    stepped_back,
)

_log = logging.getLogger("amcast.osn")
# An idle loop notices a stop within this time. With ten times more a node takes 5 s to stop, with
# ten times less every idle chain turns 20 times a second.
_POLL_S = 0.5
# After this the loop connects, or asks the peers, again: a broker restarts in seconds, and each
# attempt costs a few requests.
_RETRY_S = 1.0
# An idle chain saves its position this often. A restart reads again what came since: with ten times
# more 50 s of records that made no block, with ten times less the file is written twice a second.
_CHECKPOINT_S = 5.0
# A loop that is asked to stop ends after its request to Kafka (5 s at most, `serving.py`). One that
# waits for a peer can take 60 s: it is left behind with its ledger open, so that the others stop.
_JOIN_S = 10.0
# A consumer whose chain is stalled is opened anew after so many stalled times (30 s by default). It
# heals a client that no longer fetches a partition (docs/hazards.md). With one, each short halt of
# a collector would open new clients; with ten times more, a node would stand still for 5 minutes.
_REOPEN_AFTER_STALLS = 3


class _Interrupted(Exception):
    """The log cannot be followed now, for a reason that may pass."""


class ChainNode:
    """One chain of this node (a `channels.Channel`): its ledger, and the loop that fills it."""

    def __init__(
        self, name: str, ledger: Ledger, checkpoint: Path, dependencies: Dependencies
    ) -> None:
        """Take a ledger with one block at least, and the path of the idle checkpoint.

        `start` starts the loop. Raises `InvalidConfig` where the newest config is not valid.
        """
        self.name = name
        self.ledger = ledger
        self.config = config_in_force(ledger)
        self.order = OrderWatch(
            name, stalled_s=dependencies.stalled_s, probe_s=dependencies.probe_s
        )
        self.status = ChainStatus(name, self.order)
        ledger.watch(self.status.changed)
        self._ordered = Changes[str]()
        self._dependencies = dependencies
        self._chain: Chain | None = None
        self._entries = ConsumerEntries({}, {})  # of the open consumer, as of the last look
        self._opened_at = 0.0  # when the consumer was opened
        self._leaders = Leaders()
        self._peers_told = False  # since the start each peer has said which blocks it has
        self._at_rest = False  # the loop resumed at the idle checkpoint, not at the newest block
        self._blocks_back = 0  # it resumed at the position of so many blocks before the newest
        self._resumed_at: StreamPosition | None = None
        self._settled: dict[str, int] = {}
        self._markers_owed: dict[tuple[str, ...], int] = {}  # by set: the config that is posted
        self._checkpoint = CheckpointFile(name, checkpoint)
        self._timer = CutTimer()
        self._records = OwnRecords(
            name, dependencies.post, order=self.order, metrics=dependencies.metrics
        )
        self._writer = BlockWriter(
            name,
            ledger,
            dependencies,
            status=self.status,
            records=self._records,
            timer=self._timer,
            ordered=self._ordered,
        )
        self._thread = threading.Thread(target=self._run, name=f"osn-{name}", daemon=True)

    # -- what readers of the chain ask ----------------------------------------------------------

    @property
    def errored(self) -> bool:
        """Whether the chain does not follow its log: readers that ask for STRICT get 503."""
        return self.status.errored

    @property
    def why_errored(self) -> str:
        """What these readers are told."""
        return self.status.why_errored

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called after each block and each change of the status or the config."""
        return self.status.watch(callback)

    async def receipt(self, transaction: str, timeout_s: float) -> tuple[int, int] | None:
        """Wait until a transaction is in a durable block; give the block's number and its index.

        None where time ran out. On an event loop.
        """
        with self._ordered.watch(transaction) as ordered:
            try:
                async with asyncio.timeout(timeout_s):
                    while (place := self._find(transaction)) is None:
                        await ordered.wait()
                        ordered.clear()
            except TimeoutError:
                return None
        return place

    def _find(self, transaction: str) -> tuple[int, int] | None:
        """Say in which durable block a recent transaction is, and its index there."""
        chain = self._chain
        place = None if chain is None else chain.find(transaction)
        return place if place is not None and place[0] < self.ledger.height else None

    def knows(self, transaction: str) -> bool:
        """Whether this transaction was ordered lately: another record of it would be ignored."""
        return self._chain is not None and self._chain.knows(transaction)

    def markers(self, chains: tuple[str, ...]) -> tuple[ConfigMarker | None, ...]:
        """Give, for each chain of a set, the newest marker that was read in the set's log."""
        chain = self._chain
        return tuple(None if chain is None else chain.marker(chains, name) for name in chains)

    def settled(self, log: str) -> int:
        """Give the offset in a log below which each record is in a durable block, or never is."""
        return self._settled.get(log, 0)

    # -- its life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow the log."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to stop; `join` waits for it."""
        self.status.stop()

    def join(self, timeout_s: float = _JOIN_S) -> None:
        """Wait until the loop has ended, then close the ledger."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self.ledger.close()

    def _run(self) -> None:
        try:
            self._resume()
            while not self.status.stopping:
                self._follow_until_interrupted()
            self.status.waits_for("it was stopped")
        except Stopped:
            self.status.waits_for("it was stopped")
        except Truncated as error:
            self._dependencies.metrics.lost_tail.labels(self.name).set(1)
            self.status.lost_tail(error)
        except Exception as error:  # noqa: BLE001
            # After an unforeseen error, going on could make other blocks than the other nodes'.
            self.status.died(error)

    def _resume(self, *, blocks_back: int = 0) -> None:
        """Rebuild the core from the ledger and the idle checkpoint."""
        self.config = config_in_force(self.ledger)
        window_max = self._dependencies.window_max
        sets = ledger_sets(self.ledger, self.ledger.height - 1)
        self._dependencies.bundles.restored(self.name, sets)
        checkpoint = self._checkpoint.read()
        state = resumed_state(self.ledger, checkpoint, window_max=window_max, sets=sets)
        if blocks_back:
            state = stepped_back(state, self.ledger, blocks_back, window_max=window_max)
        self._blocks_back, self._resumed_at = blocks_back, state.position
        self._at_rest = checkpoint is not None and state.position is checkpoint.position
        rules = self._dependencies.rules(self.config)
        read_bundle = self._dependencies.read_bundle
        chain = Chain(self.name, rules, state, window_max=window_max, read_bundle=read_bundle)
        self._chain = chain
        self._settled = {}
        self._markers_owed = {}
        self._records.reset()
        self._timer.reset()
        self.status.set_ingress(is_open=chain.ingress_open)
        height = self._dependencies.metrics.ledger_blockchain_height
        height.labels(self.name).set(self.ledger.height)
        self._dependencies.metrics.lost_tail.labels(self.name).set(0)
        self._ordered.notify_all()  # a peer's blocks may hold what clients wait for

    def _follow_until_interrupted(self) -> None:
        """Follow the log until the node stops, the log is lost, or it no longer holds our place."""
        try:
            with self._open_consumer() as consumer:
                self._entries = ConsumerEntries({}, {})
                try:
                    self._follow(consumer)
                finally:  # what was read since the last look counts, too
                    self._count_entries(consumer.entries())
        except Trimmed as error:
            self._catch_up(str(error))
        except Truncated as error:
            self._step_back(error)
        except _Interrupted as interrupted:
            self.status.waits_for(str(interrupted))
            self.status.pause(_RETRY_S)

    def _open_consumer(self) -> Consumer:
        assert self._chain is not None
        chain_folder = self.ledger.folder.parent
        try:
            self._dependencies.connect()
            topic = self._dependencies.topic_of(self.name)
            if topic is not None and str(self._chain.position.cursor):
                refuse_other_topic(chain_folder, *topic)
            if not self._peers_told:
                self._await_peers()
            self._opened_at = time.monotonic()
            cursor = str(self._chain.position.cursor)
            consumer = self._dependencies.consumer(self.name, cursor)
        except (AccessDenied, ClusterUnreachable, Conflict, TimedOut, UsageError) as error:
            raise _Interrupted(str(error)) from error
        if topic is not None:
            note_topic(chain_folder, *topic)
        return consumer

    def _await_peers(self) -> None:
        """Get the blocks that peers have and this node has not, BEFORE it cuts one after a start.

        The log may have lost what these are made of; this node's own blocks would differ from them.
        """
        silent, _ = self._copy_from_peers()
        if silent:
            raise _Interrupted(
                f"{all_of(silent)}. Its blocks may hold what the log has lost, so no block is "
                f"cut until it says; to go on without it, start this node without that --peer"
            )
        self._peers_told = True

    def _copy_from_peers(self) -> tuple[list[AmcastError], bool]:
        """Append what peers have beyond the newest block, and resume from there.

        Gives why peers did not answer, and whether there were any blocks.
        """
        height = self.ledger.height
        silent = copy_blocks(
            self._dependencies.peers,
            self.name,
            lambda: (newest_block(self.ledger).header, self.config),
            self._take,
        )
        copied = self.ledger.height > height
        if copied:
            self._resume()
        return silent, copied

    def _take(self, block: VerifiedBlock) -> None:
        self.status.check_stop()
        self.config = block.config
        self._writer.append_verified(block)

    def _catch_up(self, lost: str) -> None:
        """Get from a peer the blocks whose records the log no longer holds; `lost` says so."""
        if not self.errored:
            self.status.waits_for(lost)
        silent, copied = self._copy_from_peers()
        if not copied:
            self.status.waits_for(f"the log no longer holds its place, {all_of(silent)} ({lost})")
            self.status.pause(_RETRY_S)

    def _step_back(self, error: Truncated) -> None:
        """Resume at an earlier position, where the last one is gone; raise `error` if none may be.

        The records behind the newest block made none, so an idle checkpoint that is gone costs
        nothing. Behind an earlier block the chain goes on only where an operator accepts the loss.
        """
        assert self._chain is not None
        if self._chain.position is not self._resumed_at:
            raise error  # it was following its log
        if self._at_rest:
            self._checkpoint.discard()
            blocks_back = self._blocks_back
        elif self._dependencies.accepts_loss(self.name) and self._blocks_back < self.ledger.height:
            blocks_back = 2 * self._blocks_back + 1
        else:
            raise error
        try:
            self._resume(blocks_back=blocks_back)
        except NoWayBack as refusal:
            raise error from refusal
        where = self._chain.position.cursor or "the beginning"
        says = "chain %s goes on behind its newest block, and reads again from %s: %s"
        _log.warning(says, self.name, where, error)

    # -- the loop -------------------------------------------------------------------------------

    def _follow(self, consumer: Consumer) -> None:
        """Poll, step the core, carry out its actions; then do what is due by the clock."""
        chain = self._chain
        assert chain is not None
        while not self.status.stopping:
            batches = self._poll(consumer, chain)
            if self._leaders.changed(consumer.leader_epochs()):
                # A loss comes with another leader: what is at hand may have replaced what is in
                # the blocks of a peer. A peer that does not answer holds up nothing here.
                silent, copied = self._copy_from_peers()
                if any(isinstance(reason, ForgedBlock) for reason in silent):
                    self._peers_told = False
                    raise _Interrupted(all_of(silent))
                if silent:
                    _log.warning("chain %s: its leader changed; %s", self.name, all_of(silent))
                if copied:
                    return
            for batch in batches:
                log = batch.log.to
                for record in batch.records:
                    position = chain.position.following(CursorAfter(batch, record))
                    place = RecordPlace(log, record.offset, batch.to)
                    for action in chain.step(position, record.value, place):
                        self._carry_out(action, chain)
            progress = consumer.progress()
            self._settled = chain.settled(progress)
            self._post_markers(chain, progress)
            self._watch_order(consumer)
            if self._is_stuck():
                break
            self.status.waits_for(None)  # the poll raises where the log no longer holds our place
            self._request_cut(chain)
            self._save_checkpoint(chain, every_s=_CHECKPOINT_S)
            self.status.set_ingress(is_open=chain.ingress_open)
        self._save_checkpoint(chain, every_s=0.0)

    def _poll(self, consumer: Consumer, chain: Chain) -> list[Batch]:
        """Give the next records; wait no longer than until something is due."""
        self.status.turned()
        now = time.monotonic()
        cut_at = self._timer.due_at(chain.rules.parameters.timeout_s)
        times = (now + _POLL_S, cut_at, self._records.post_due(now))
        due_at = min(due for due in times if due is not None)
        try:
            return consumer.poll(max(0.0, due_at - now))
        except ClusterUnreachable as error:
            # The consumer keeps its place, and reads on as soon as a broker is back.
            self.status.log_answers(str(error))
            return []
        except (AccessDenied, TimedOut, UsageError) as error:  # as if the next plan lacks the chain
            raise _Interrupted(str(error)) from error

    def _carry_out(self, action: Action, chain: Chain) -> None:
        metrics = self._dependencies.metrics
        match action:
            case Write():
                if action.config:
                    # Readers are judged by a config before they get the block that brings it.
                    assert isinstance(chain.rules, ChannelRules)
                    self.config = chain.rules.config
                self._writer.write(action)
                if action.config:
                    self.status.changed()
            case Repost(raw):
                self._records.repost(raw)
            case SetOutcome(chains, offset, outcome):
                self._dependencies.bundles.read(self.name, chains, offset, outcome)
            case Refuse(transaction, reason, counted_as):
                metrics.transactions_refused.add(self.name, counted_as)
                _log.info("chain %s refuses %s: %s", self.name, transaction, reason)
            case Ignore(reason, counted_as):
                metrics.records_ignored.add(self.name, counted_as)
                _log.debug("chain %s ignores a record: %s", self.name, reason)

    def _watch_order(self, consumer: Consumer) -> None:
        """Judge whether the order moves; post a probe where only a new record can show it."""
        now, order = time.monotonic(), self.order
        if not order.due(now):
            return
        self._count_entries(consumer.entries())
        trouble, stalled = order.trouble, order.stalled
        for log in order.look(consumer.progress(), now, by_collector=consumer.by_collector):
            self._records.probe(log)
        if order.stalled != stalled:
            _log.warning("chain %s: %s", self.name, order.trouble or "its order moves again")
        if order.trouble != trouble:
            self.status.changed()

    def _is_stuck(self) -> bool:
        """Whether the order stands still for so long that a new client shall read it."""
        open_s = time.monotonic() - self._opened_at
        return self.order.stalled and open_s > _REOPEN_AFTER_STALLS * self._dependencies.stalled_s

    def _count_entries(self, entries: ConsumerEntries) -> None:
        """Add to the metrics what the consumer has counted since the last look."""
        metrics, before, self._entries = self._dependencies.metrics, self._entries, entries
        for counter, counts, counted in (
            (metrics.entries_read, entries.read, before.read),
            (metrics.entries_dropped, entries.dropped, before.dropped),
        ):
            for log, count in counts.items():
                counter.add(self.name, log, amount=float(count - counted.get(log, 0)))

    def _post_markers(self, chain: Chain, logs: Iterable[str]) -> None:
        """Post this chain's config marker to each set whose log, as far as read, lacks it."""
        marker = chain.config_marker
        for log in logs:
            chains = tuple(log.split("+"))
            if len(chains) > 1 and self._markers_owed.get(chains) != marker.sequence:
                self._markers_owed[chains] = marker.sequence
                lacks = partial(_lacks_marker, chain, chains, marker)
                if lacks():
                    self._records.config_marker(chains, marker, needed=lacks)

    def _request_cut(self, chain: Chain) -> None:
        """Post a time-to-cut once transactions have waited long enough for the same block."""
        now = time.monotonic()
        wanted = chain.wanted_cut
        self._timer.observe(wanted, now)
        block = self._timer.expired(chain.rules.parameters.timeout_s, now)
        if block is not None:
            self._records.time_to_cut(block, needed=lambda: chain.wanted_cut == wanted)

    def _save_checkpoint(self, chain: Chain, *, every_s: float) -> None:
        """Save how far an idle chain has read. A restart must repeat an unstored repost."""
        if not self._records.reposts_pending:
            self._checkpoint.save(chain, every_s=every_s)


def _lacks_marker(chain: Chain, chains: tuple[str, ...], marker: ConfigMarker) -> bool:
    """Whether the log of a set, as far as it was read, has no marker of this config or a later."""
    newest = chain.marker(chains, marker.chain)
    return newest is None or newest.sequence < marker.sequence
