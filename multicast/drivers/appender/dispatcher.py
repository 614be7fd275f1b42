"""Sends the records of all partitions over the links, and takes answers. Not thread-safe.

    leaderless   partitions whose leader is unknown or no longer leads
    link.ready   partitions that may have something to send on this link
    linger       once a partition's first record has waited so long, or its batch is full, all that
                 waits for that broker goes
    outcomes     what the appender must report to its callers
    beside       what goes along with records: no flush waits for it, and it takes no room. Where a
                 partition cannot be written, at most `_BESIDE_MAX` of it wait

Nothing here waits; the appender calls it under its lock.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import islice, repeat
from math import inf
from typing import Generic, NamedTuple

from multicast.drivers.appender.entries import QueuedEntry, prepared
from multicast.drivers.appender.link import L, Link, SentBatch
from multicast.drivers.appender.partition_appends import EntryOutcome, PartitionAppends
from multicast.drivers.appender.record_batch import Codec, ProducerIdentity
from multicast.drivers.protocol import AppendFailed, Beside, TopicPartition
from multicast.errors import AmcastError, AppendNotStored

_LOG = logging.getLogger("amcast.appender")

# Two keep a broker busy while an answer is on its way; with one, each round trip is idle time, and
# with more, records are divided among more and smaller requests.
REQUESTS_IN_FLIGHT = 2
# Of a batch: just below Kafka's default of max.message.bytes. A larger record goes alone.
BATCH_BYTES_MAX = 1_000_000
# Of a request with several records: a plain choice, so that a broker answers the first ones soon.
REQUEST_BYTES_MAX = 32 * 1024 * 1024
# Records beside others that wait for one partition, as while it has no leader: some 500 kB. Above
# it more are refused at once. An appender without a linger makes so many in half a second at most.
_BESIDE_MAX = 1000


class Lacking(NamedTuple):
    """What an appender lacks: its ID, the leaders of partitions, links to brokers."""

    identity: bool
    partitions: Sequence[TopicPartition]
    nodes: Sequence[int]


class Limits(NamedTuple):
    """The limits of requests; times are in seconds, and `requests_max` is for each broker."""

    timeout_s: float
    delivery_timeout_s: float
    requests_max: int = REQUESTS_IN_FLIGHT
    request_bytes_max: int = REQUEST_BYTES_MAX
    batch_bytes_max: int = BATCH_BYTES_MAX
    linger_s: float = 0.0


class Dispatcher(Generic[L]):
    """All partitions and links of an appender.

    `wake` is called when a link is to be looked at, `need` when something is lacking, `why` for the
    words of an error code of Kafka's about a partition. `beside` and `codec` may be None.
    """

    def __init__(
        self,
        limits: Limits,
        beside: Beside | None,
        *,
        codec: Codec | None,
        wake: Callable[[], None],
        need: Callable[[], None],
        why: Callable[[TopicPartition, int], str],
    ) -> None:
        self.limits = limits
        self._beside = beside
        self._codec = codec
        self._wake = wake
        self._need = need
        self._why = why
        self.identity: ProducerIdentity | None = None
        self.partitions: dict[TopicPartition, PartitionAppends] = {}
        self.leaderless: dict[PartitionAppends, None] = {}
        self.links: dict[int, L] = {}
        self.outcomes: list[EntryOutcome] = []
        self.refusals: dict[TopicPartition, AmcastError] = {}  # why there is no leader
        self.trouble = ""  # the last reason why something could not be sent
        self.unsettled = 0  # records that were taken and whose `done` has not returned
        self.unsettled_bytes = 0
        self.beside = 0  # the same of what goes beside records, which is in neither of the two
        self.flushes = 0  # calls that wait for all outcomes: nothing lingers meanwhile
        self._sent_at = 0.0  # when what was due was last sent
        self.linger_ends = inf  # when the reader is to send what lingers

    # -- what it needs to send --------------------------------------------------------------

    def lacking(self) -> Lacking:
        """Return what somebody must get."""
        nodes = {appends.leader: None for appends in self.partitions.values()}
        return Lacking(
            self.identity is None and bool(self.partitions),
            [appends.partition for appends in self.leaderless],
            [node for node in nodes if node is not None and node not in self.links],
        )

    def identified(self, identity: ProducerIdentity) -> None:
        """Take the producer's ID."""
        self.identity = identity
        for appends in self.partitions.values():
            appends.identity = appends.identity or identity
            self.mark(appends)

    def led(self, leaders: Mapping[TopicPartition, int]) -> None:
        """Take the leaders of partitions."""
        for partition, leader in leaders.items():
            appends = self.partitions[partition]
            self.leaderless.pop(appends, None)
            self.refusals.pop(partition, None)
            if appends.leader is None:
                appends.leader = leader
            self.mark(appends)

    def connected(self, link: L) -> None:
        """Take a link to a broker."""
        self.links[link.node] = link
        for appends in self.partitions.values():
            if appends.leader == link.node:
                self.mark(appends)

    def refuse(self, partition: TopicPartition, error: AmcastError) -> None:
        """Settle the records of a queue; the next one asks again for the leader."""
        self.refusals[partition] = error
        appends = self.partitions[partition]
        self.leaderless.pop(appends, None)
        self.outcomes += appends.refuse_queue(error)
        if not appends.idle:
            self.mark(appends)
        self._wake()

    # -- what to send -----------------------------------------------------------------------

    def add(self, partition: TopicPartition, entry: QueuedEntry, now: float) -> None:
        """Queue an entry, and send what may be sent; with a linger who is woken does that."""
        self.unsettled += entry.count
        self.unsettled_bytes += entry.size
        appends = self._enqueue(partition, entry, now)
        linger_s = self.limits.linger_s
        if not linger_s:
            self.send_all(now)
        elif not appends.is_due:  # else who sends knows
            ends = appends.linger_ends(linger_s)
            if ends <= now or self.flushes:
                appends.is_due, ends = True, now
            if ends < self.linger_ends:
                self.linger_ends = ends
                self._wake()

    def appends(self, partition: TopicPartition) -> PartitionAppends:
        """Return the appends to a partition, from now on with a leader if it has one."""
        appends = self.partitions.get(partition)
        if appends is None:
            limits = self.limits
            appends = PartitionAppends(
                partition,
                requests_max=limits.requests_max,
                batch_bytes_max=limits.batch_bytes_max,
                codec=self._codec,
            )
            appends.identity = self.identity
            self.partitions[partition] = appends
            self.mark(appends)
        return appends

    def is_ready(self, appends: PartitionAppends) -> bool:
        """Return whether a record would be sent now."""
        return appends.identity is not None and appends.leader in self.links

    def mark(self, appends: PartitionAppends) -> None:
        """Note that a partition changed."""
        if appends.leader is None:
            if appends not in self.leaderless:
                self.leaderless[appends] = None
                self._need()
        elif appends.leader in self.links:
            self.links[appends.leader].ready[appends] = None

    def send_all(self, now: float, *, hold: bool = False) -> None:
        """Send what waits for any broker, as far as requests may be in flight.

        With `hold` links keep their next requests, for who has the lock to write without it.
        """
        self._sent_at = now
        for link in self.links.values():
            if self._may_send(link, now):
                break
        else:
            return
        # Twice, because what goes beside a broker's records may be due at one before it.
        for link in 2 * list(self.links.values()):
            while self._may_send(link, now):
                batches = self._next_batches(link, now)
                if not batches:
                    break
                if hold:
                    link.hold(batches, now)
                    continue
                link.send(batches, now)
                if link.broken or link.is_sending:
                    self._wake()

    def look_for_lingering(self) -> None:
        """Note when the first record that still lingers has lingered."""
        linger_s = self.limits.linger_s
        if linger_s:
            ready = [appends for link in self.links.values() for appends in link.ready]
            ends = [appends.linger_ends(linger_s) for appends in ready]
            # What is due by now is sent once an answer comes.
            self.linger_ends = min([end for end in ends if end > self._sent_at], default=inf)

    def _may_send(self, link: Link, now: float) -> bool:
        if not (link.ready and link.may_send(self.limits.requests_max)):
            return False
        return not self.limits.linger_s or any(self._is_due(appends, now) for appends in link.ready)

    def _is_due(self, appends: PartitionAppends, now: float) -> bool:
        return self.flushes > 0 or appends.linger_ends(self.limits.linger_s) <= now

    def _enqueue(
        self, partition: TopicPartition, entry: QueuedEntry, now: float
    ) -> PartitionAppends:
        entry.partition, entry.since = partition, now
        appends = self.partitions.get(partition) or self.appends(partition)
        appends.enqueue(entry)
        self.mark(appends)
        return appends

    def _next_batches(self, link: Link, now: float) -> list[SentBatch]:
        batches = []
        fresh = []
        room = self.limits.request_bytes_max
        for appends in list(link.ready):
            if appends.leader != link.node or not appends.wants_to_send:
                del link.ready[appends]
                continue
            again = appends.to_send_again() if room > 0 else None
            if again is not None:
                batches.append((appends, again))
                room -= len(again.written)
            elif appends.may_take():
                fresh.append(appends)
        if fresh and room > 0:
            counts = first_entries(fresh, room)
            if self._beside is not None:
                self._add_beside(link, counts, now, again={appends for appends, _ in batches})
            now_ms = time.time_ns() // 1_000_000
            for appends, count in counts.items():
                batches.append((appends, appends.take(count, now, now_ms)))
                if not appends.queue:
                    del link.ready[appends]
        return batches

    def _add_beside(
        self,
        link: Link,
        counts: dict[PartitionAppends, int],
        now: float,
        *,
        again: Container[PartitionAppends],
    ) -> None:
        """Queue what goes along with these records; it joins the request if it can.

        `again` are the partitions of which the request holds a batch that was sent before.
        """
        assert self._beside is not None
        started = {}
        for appends, count in counts.items():
            first = appends.count_first(count)
            if first:
                started[appends.partition] = first
        if not started:
            return
        try:
            records = prepared(self._beside(started))
        except Exception:  # noqa: BLE001
            # The records themselves must go; their appends were accepted.
            _LOG.exception("the callback for what is sent beside records failed")
            return
        taken = []
        for partition, record in records:
            record.counted = record.beside = True
            self.beside += 1
            if len(self.appends(partition).queue) < _BESIDE_MAX:
                taken.append(self._enqueue(partition, record, now))
            else:
                name = f"{partition.topic}/{partition.partition}"
                why = f"{name} does not hold the record: too many wait for its leader."
                self.outcomes.append((record, AppendFailed(AppendNotStored(why))))
        for appends in taken:
            fits = appends.leader == link.node and appends.may_take() and appends not in again
            appends.hurries = True
            appends.compresses = False  # who reads it need not have the codec
            if fits and counts.get(appends, 0) == len(appends.queue) - 1:
                counts[appends] = len(appends.queue)

    def has_no_beside(self) -> bool:
        """Return whether all that went beside records has its outcome."""
        return not self.beside

    # -- what becomes of it -----------------------------------------------------------------

    def receive(self, link: Link) -> None:
        """Take the answers that have arrived on a link."""
        for appends, batch, code, offset in link.receive():
            self.trouble = self._why(appends.partition, code) if code else ""
            appends.answered(batch, code, offset, self.trouble)
            self._settle(appends)

    def reported(self, outcomes: Sequence[EntryOutcome]) -> None:
        """Take that the callers know these outcomes."""
        for entry, _ in outcomes:
            if entry.beside:
                self.beside -= 1
            else:
                self.unsettled -= entry.count
                self.unsettled_bytes -= entry.size

    def enforce_limits(self, now: float) -> None:
        """Break links that do not answer, and settle records whose time is up."""
        limits = self.limits
        for link in self.links.values():
            if link.overdue(now - limits.timeout_s):
                link.broken = f"no answer came within {limits.timeout_s:g} s"
        due = now - limits.delivery_timeout_s
        trouble = f" ({self.trouble})" if self.trouble else ""
        why = f"no broker acknowledged it within {limits.delivery_timeout_s:g} s{trouble}"
        for appends in self.partitions.values():
            if not appends.idle:
                appends.expire(due, why)
                self._settle(appends)
                missed = AppendNotStored(f"{appends.name} does not hold the record: {why}.")
                self.outcomes += appends.refuse_queue(missed, since=due)

    def drop(self, link: Link) -> None:
        """Close a broken link; what it has not answered is sent again."""
        del self.links[link.node]
        self.trouble = f"broker {link.node}: {link.broken}"
        for appends, batch in link.close():
            appends.unanswered(batch)
            self._settle(appends)
        self.lose_leader(link.node)

    def lose_leader(self, node: int) -> None:
        """Ask again who leads the partitions of a broker that cannot be reached."""
        for appends in self.partitions.values():
            if appends.leader == node:
                appends.leader = None
                self.mark(appends)

    def end(self, why: str) -> None:
        """Close all links, and settle all records."""
        for link in self.links.values():
            for appends, batch in link.close():
                appends.unanswered(batch)
        self.links.clear()
        for appends in self.partitions.values():
            self.outcomes += appends.give_up(why)

    def _settle(self, appends: PartitionAppends) -> None:
        self.outcomes += appends.settled()
        if appends.identity is None and self.identity is not None:
            self.identity = None  # the epochs of the ID are used up
            self._need()
        if appends.leader is None or appends.wants_to_send:
            self.mark(appends)


def first_entries(fresh: Sequence[PartitionAppends], room: int) -> dict[PartitionAppends, int]:
    """Return how many entries of each queue fit in one request with `room` bytes for records.

    The oldest entries are, at least one. A request has one batch of each partition. `fresh` are
    partitions that may send records now.
    """
    counts = {appends: appends.fitting() for appends in fresh}
    sizes = (max(each.queue[0].size, min(each.queue_bytes, each.batch_bytes_max)) for each in fresh)
    if sum(sizes) <= room:
        return counts
    taken = dict.fromkeys(fresh, 0)
    total = 0
    queues = [zip(repeat(each), islice(each.queue, counts[each]), strict=False) for each in fresh]
    for appends, entry in heapq.merge(*queues, key=lambda queued: queued[1].since):
        if total and total + entry.size > room:
            break
        taken[appends] += 1
        total += entry.size
    return {appends: count for appends, count in taken.items() if count}
