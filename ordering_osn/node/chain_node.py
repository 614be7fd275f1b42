"""One chain at one node: what the log says becomes blocks in the ledger.

The shell around `chain.Chain`: one thread polls the chain's order stream, hands each record to the
core, and carries out what it says. No rule about blocks stands in this file.

    running    the loop turns, and the log answers
    dead       the loop ended of an error that another try does not mend; only a restart helps.
               Then nothing is let in, and the health check says so: there are no zombies

Invariant: the ledger's last block says where the log is read on (or, where nothing is pending, a
later `Rest`). Everything in memory can be thrown away at any moment and made again from there, and
is, at a start and after a gap.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from multicast.consumer import Consumer
from multicast.delivery import Batch
from multicast.drivers.protocol import Appended, AppendOutcome
from multicast.errors import AccessDenied, ClusterUnreachable, TimedOut, Trimmed, UsageError
from ordering_osn.chain.blockcutter import FillTimes
from ordering_osn.chain.blocks import is_config, last_config_of, seal
from ordering_osn.chain.chain import (
    Action,
    Chain,
    ChainState,
    Ignore,
    Refuse,
    Repost,
    StreamPosition,
    Write,
    state_from,
)
from ordering_osn.chain.records import Connect, TimeToCut, encode
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.channel_creation import created_channel
from ordering_osn.ledger.ledger import Ledger, LedgerFull
from ordering_osn.node.catch_up import ForgedBlock, NoPeer, verified
from ordering_osn.node.checkpoint import read_rest, write_rest
from ordering_osn.node.dependencies import Dependencies
from ordering_osn.node.filters import ChannelRules
from ordering_osn.node.kafka_connection import After
from ordering_osn.node.order_watch import OrderWatch
from ordering_osn.node.outbox import Done, Outbox
from ordering_osn.node.receipts import PendingReceipts
from ordering_osn.protos import Block, KafkaMetadata

_log = logging.getLogger("amcast.osn")
_POLL_S = 0.5  # the loop looks this often whether it is to stop
_AGAIN_S = 1.0
_HUNG_S = 60.0
_WATCH_S = 0.2  # a moving order is counted through no more often than this
_REST_S = 5.0
_STOP_S = 10.0


class _Stopped(Exception):
    """The loop was told to end while it waited."""


class _Interrupted(Exception):
    """The log cannot be followed now, for a reason that may pass."""


class ChainNode:
    """One chain of this node (a `channels.Channel`): its ledger, and the loop that fills it."""

    def __init__(self, name: str, ledger: Ledger, rest: Path, around: Dependencies) -> None:
        """Take a ledger that holds a block at least, and a file; `start` begins.

        Raises `InvalidConfig` where its newest config block is none.
        """
        self.name = name
        self.ledger = ledger
        self.receipts = PendingReceipts()
        self.turn_to_post = asyncio.Lock()  # clients' envelopes go out in the order they came
        self.ingress_open = False  # closed while a config is on its second way through the log
        self.order = OrderWatch(name, stalled_s=around.stalled_s, probe_s=around.probe_s)
        self._dead: str | None = None
        self._waits: str | None = "it has not started yet"  # what the loop waits for
        self._silent: str | None = None  # why the log does not answer
        self._around = around
        self._metrics = around.metrics
        self._chain: Chain | None = None
        self._place = StreamPosition(0, "")  # behind the newest record that was stepped
        self._rest_file = rest
        self._rested = -1  # the position that the file says
        self._rested_at = 0.0
        self._outbox = Outbox(self._post)
        self._fills = FillTimes()
        self._wanted: tuple[int, int] | None = None
        self._wanted_since = 0.0
        self._asked: tuple[int, int] | None = None
        self._watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._turned_at = time.monotonic()
        self._watch_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"osn-{name}", daemon=True)
        self.config = self._config_in_force()

    # -- what others see ----------------------------------------------------------------------

    @property
    def errored(self) -> bool:
        """Whether strict readers are to be sent away: the chain does not follow its log.

        Not where the order stands still: there every node has the same blocks.
        """
        return (self._dead or self._waits or self._silent) is not None

    def trouble(self) -> str | None:
        """Say what keeps this chain from taking envelopes that are ordered soon; None: nothing."""
        return self._dead or self._waits or self._silent or self.order.trouble

    def unhealthy(self) -> str | None:
        """Say what is wrong with this chain; None where nothing is."""
        silent = time.monotonic() - self._turned_at
        if self._dead is None and silent > _HUNG_S:
            return f"its loop has not turned for {silent:.0f} s"
        return self.trouble()

    def log_answers(self, why_not: str | None) -> None:
        """Note whether the log answers; None: it does. From any thread."""
        if why_not != self._silent:
            self._silent = why_not
            _log.warning("chain %s: %s", self.name, why_not or "its log answers again")
            self._changed()

    async def ready(self, timeout_s: float) -> bool:
        """Wait until the chain takes envelopes; False where it is in trouble, or time ran out."""
        if self.ingress_open or self.trouble() is not None:
            return self.trouble() is None
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        unwatch = self.watch(lambda: _wake(loop, changed))
        deadline = loop.time() + timeout_s
        try:
            while not self.ingress_open and self.trouble() is None:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
                changed.clear()
        except TimeoutError:
            return False
        finally:
            unwatch()
        return self.trouble() is None

    async def receipt(self, transaction: str, timeout_s: float) -> tuple[int, int] | None:
        """Wait until a transaction stands in a written block: (number, index); None: in none."""
        waiting = self.receipts.wait(transaction)
        try:
            found = self.find(transaction)
            if found is not None:
                return found
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            return None
        finally:
            self.receipts.forget(transaction, waiting)

    def find(self, transaction: str) -> tuple[int, int] | None:
        """Say in which written block a recent transaction stands, and where in it."""
        chain = self._chain
        found = None if chain is None else chain.find(transaction)
        return found if found is not None and found[0] < self.ledger.height else None

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called after each block and each change of what stands above."""
        unwatch = self.ledger.watch(callback)
        with self._lock:
            self._watchers.append(callback)

        def end() -> None:
            unwatch()
            with self._lock:
                if callback in self._watchers:
                    self._watchers.remove(callback)

        return end

    # -- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow the log."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the loop to end; `join` waits for it."""
        self._stopping.set()

    def join(self, timeout: float = _STOP_S) -> None:
        """Wait until the loop has ended, then let go of the ledger."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        if not self._thread.is_alive():
            self.ledger.close()

    def _run(self) -> None:
        try:
            self._recover()
            while not self._stopping.is_set():
                self._go_on()
            self._wait_for("it was stopped")
        except _Stopped:
            self._wait_for("it was stopped")
        except Exception as error:  # noqa: BLE001
            # Whatever it was, going on could make another chain of blocks than the other nodes'.
            self._dead = f"its loop ended: {error or type(error).__name__}"
            _log.exception("chain %s is dead", self.name)
            self._changed()

    def _go_on(self) -> None:
        """Follow the log until told to stop, or until something is in the way."""
        try:
            with self._open() as consumer:
                self._follow(consumer)
        except Trimmed as error:
            self._wait_for(str(error))
            height = self.ledger.height
            self._fetch()
            if self.ledger.height > height:
                self._recover()
        except _Interrupted as interrupted:
            self._wait_for(str(interrupted))
            self._stopping.wait(_AGAIN_S)

    def _open(self) -> Consumer:
        try:
            self._around.connect()
            return self._around.consumer(self.name, str(self._place.cursor))
        except (AccessDenied, ClusterUnreachable, TimedOut, UsageError) as error:
            raise _Interrupted(str(error)) from error

    def _follow(self, consumer: Consumer) -> None:
        """One loop on one screen: poll, step, carry out."""
        chain = self._chain
        assert chain is not None
        while not self._stopping.is_set():
            for batch in self._poll(consumer):
                spans = len(batch.to) > 1
                for record in batch.records:
                    place = StreamPosition(self._place.position + 1, After(batch, record.offset))
                    for action in chain.step(place, record.value, spans=spans):
                        self._carry_out(action)
                    self._place = place
            self._watch_order(consumer)
            self._wait_for(None)  # a log that no longer holds our place would have said so
            self._look_at_the_clock(chain)
            self._rest(chain, _REST_S)
            if chain.ingress_open != self.ingress_open:
                self.ingress_open = chain.ingress_open
                self._changed()
        self._rest(chain, 0.0)

    def _poll(self, consumer: Consumer) -> list[Batch]:
        """Give what the log says next; wait no longer than until something is due."""
        now = self._turned_at = time.monotonic()
        due = [at for at in (self._cut_at(), self._outbox.turn(now)) if at is not None]
        try:
            return consumer.poll(max(0.0, min([_POLL_S, *(at - now for at in due)])))
        except ClusterUnreachable as error:
            # The consumer keeps its place, and reads on as soon as a broker is back.
            self.log_answers(str(error))
            return []
        except (AccessDenied, TimedOut, UsageError) as error:  # as where the chain is left out
            raise _Interrupted(str(error)) from error

    def _watch_order(self, consumer: Consumer) -> None:
        """Judge whether the order moves; post a probe where nothing else can tell."""
        now = time.monotonic()
        if now < self._watch_at:
            return
        self._watch_at = now + _WATCH_S
        order, before, stalled = self.order, self.order.trouble, self.order.stalled
        if order.look(consumer.progress(), now, by_collector=consumer.by_collector):
            self._outbox.put(encode(Connect()), self._probe_posted, needed=lambda: True)
        if order.stalled != stalled:
            _log.warning("chain %s: %s", self.name, order.trouble or "its order moves again")
        if order.trouble != before:
            self._changed()

    # -- time-to-cut --------------------------------------------------------------------------

    def _cut_at(self) -> float | None:
        """Say when a time-to-cut is due; None: none is wanted, or it is asked for already."""
        if self._wanted is None or self._wanted == self._asked:
            return None
        assert self._chain is not None
        return self._wanted_since + self._chain.rules.parameters.timeout_s

    def _look_at_the_clock(self, chain: Chain) -> None:
        """Ask for a time-to-cut once messages have waited long enough in the same batch."""
        now = time.monotonic()
        wanted = chain.wanted_cut
        self._fills.observe((), wanted and wanted[0], now)
        if wanted != self._wanted:
            self._wanted, self._wanted_since = wanted, now
        due = self._cut_at()
        if wanted is not None and due is not None and due <= now:
            self._asked = wanted
            self._outbox.put(
                encode(TimeToCut(wanted[0])),
                self._timer_posted,
                needed=lambda: chain.wanted_cut == wanted,
            )

    # -- carrying out -------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        match action:
            case Write():
                self._write(action)
            case Repost(raw):
                self._metrics.records_reposted.add(self.name)
                self._outbox.put(raw, self._posted)
            case Refuse(transaction, reason, counted_as):
                self._metrics.transactions_refused.add(self.name, counted_as)
                _log.info("chain %s refuses %s: %s", self.name, transaction, reason)
            case Ignore(reason, counted_as):
                self._metrics.records_ignored.add(self.name, counted_as)
                _log.debug("chain %s ignores a record: %s", self.name, reason)

    def _write(self, action: Write) -> None:
        """Sign a block and append it; who waits for it hears of it when it is on the disk."""
        block = action.block
        number = block.header.number
        if not (action.config or action.creates):
            for took_s in self._fills.observe([number], None, time.monotonic()):
                self._metrics.blockcutter_block_fill_duration.labels(self.name).observe(took_s)
        seal(
            block,
            last_config=action.last_config,
            consenter=action.consenter,
            signer=self._around.signer,
        )
        if action.config:
            # Readers are judged by the new config before they get the block that brings it.
            assert self._chain is not None
            rules = self._chain.rules
            assert isinstance(rules, ChannelRules)
            self.config = rules.config
        if action.creates:
            self._create(block)
        self._settle_posts()
        self._append(number, block.SerializeToString())
        persisted = KafkaMetadata.FromString(action.consenter).last_offset_persisted
        self._metrics.consensus_kafka_last_offset_persisted.labels(self.name).set(persisted)
        self.receipts.written(number, action.transactions)
        if action.config:
            self._changed()

    def _create(self, block: Block) -> None:
        """Have the channel made that this block creates.

        BEFORE the block is durable: a node that restarts in between writes the same block again,
        and making the channel twice is making it once.
        """
        for envelope in block.data.data:
            created = created_channel(envelope)
            if created is not None:
                self._around.created(*created)

    def _settle_posts(self) -> None:
        """Wait until what was to be posted again is stored: behind this block nobody reads it."""
        self._outbox.turn(time.monotonic())
        while self._outbox.owes:
            self._outbox.wait(0.1)
            now = self._turned_at = time.monotonic()
            self._outbox.turn(now)
            if self._stopping.is_set():
                raise _Stopped

    def _append(self, number: int, raw: bytes) -> None:
        """Append a block; where the disk is full, wait until it is not, and let nothing in."""
        began = time.monotonic()
        while True:
            try:
                self.ledger.append(number, raw)
                break
            except LedgerFull as error:
                self._wait_for(str(error))
                self._turned_at = time.monotonic()
                if self._stopping.wait(_AGAIN_S):
                    raise _Stopped from error
        self._wait_for(None)
        took_s = time.monotonic() - began
        self._metrics.ledger_blockstorage_commit_time.labels(self.name).observe(took_s)
        self._metrics.ledger_blockchain_height.labels(self.name).set(number + 1)

    # -- from the ledger, from peers ----------------------------------------------------------

    def _recover(self) -> None:
        """Make the core anew from the ledger."""
        self.config = self._config_in_force()
        rules = self._around.rules(self.config)
        state = self._state()
        self._chain = Chain(rules, state, window_max=self._around.window_max)
        self.ingress_open = self._chain.ingress_open
        self._place = StreamPosition(max(0, state.place.position), state.place.cursor)
        self._outbox = Outbox(self._post)
        self.order.probe_lost()
        self._wanted = self._asked = None
        self._metrics.ledger_blockchain_height.labels(self.name).set(self.ledger.height)

    def _state(self) -> ChainState:
        state = state_from(self._newest_blocks(), window_max=self._around.window_max)
        rest = read_rest(self._rest_file)
        return state if rest is None else rest.within(state)

    def _newest_blocks(self) -> Iterator[Block]:
        """Give the ledger's blocks, newest first."""
        for number in range(self.ledger.height - 1, self.ledger.base - 1, -1):
            yield Block.FromString(self.ledger.read(number))

    def _config_in_force(self) -> ChannelConfig:
        newest = Block.FromString(self.ledger.read(self.ledger.height - 1))
        return ChannelConfig.from_block(self.ledger.read(last_config_of(newest)))

    def _fetch(self) -> None:
        """Get from a peer what the log no longer holds; every block is verified."""
        newest = Block.FromString(self.ledger.read(self.ledger.height - 1))
        try:
            raws = self._around.peers.blocks(self.name, self.ledger.height)
            for found in verified(raws, previous=newest.header, config=self.config):
                if self._stopping.is_set():
                    raise _Stopped
                self._turned_at = time.monotonic()
                if is_config(found.block):
                    self._create(found.block)
                self.config = found.config
                self.ledger.append(found.number, found.raw)
        except (NoPeer, ForgedBlock, LedgerFull) as error:
            self._wait_for(str(error))
            self._stopping.wait(_AGAIN_S)

    def _rest(self, chain: Chain, after_s: float) -> None:
        """Note where the chain stands, where nothing is pending, some time after the last note."""
        now = time.monotonic()
        if self._place.position == self._rested or now - self._rested_at < after_s:
            return
        rest = chain.at_rest()
        if rest is None or self._outbox.owes:
            return
        try:
            write_rest(self._rest_file, rest)
        except OSError as error:  # as where the disk is full; without it more is read again
            _log.warning("chain %s: %s: %s", self.name, self._rest_file, error)
        self._rested, self._rested_at = self._place.position, now

    # -- small things -------------------------------------------------------------------------

    def _post(self, raw: bytes, done: Done) -> None:
        self._around.post(raw, self.name, done)

    def _timer_posted(self, outcome: AppendOutcome) -> None:
        """Count a posting of a time-to-cut."""
        stored = isinstance(outcome, Appended)
        self._metrics.timers_posted.add(self.name, "stored" if stored else "failed")
        self._posted(outcome)

    def _probe_posted(self, outcome: AppendOutcome) -> None:
        """Note where a probe stands in the log."""
        if isinstance(outcome, Appended):
            self.order.probe_stored(outcome.offset)
        self._posted(outcome)

    def _posted(self, outcome: AppendOutcome) -> None:
        """Note where a record stands in the log; say where a posting failed: it is made again."""
        if isinstance(outcome, Appended):
            self.order.posted(outcome.offset)
        else:
            _log.warning("chain %s posts again: %s", self.name, outcome.error)

    def _wait_for(self, what: str | None) -> None:
        """Note what the loop waits for; None: it runs."""
        if what != self._waits:
            self._waits = what
            if what is not None and not self._stopping.is_set():
                _log.warning("chain %s: %s", self.name, what)
            self._changed()

    def _changed(self) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for callback in watchers:
            callback()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
