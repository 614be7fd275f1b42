"""Copies what a consumer delivers into an ordinary topic, in order and once each.

A copier is a consumer of a group, and a transactional producer: each transaction holds copies and
the group's cursor after them. The group is that of the consumer and the target, and its name is the
transactional ID, too: a second copier of both fences the first.

    open    the transaction time-out bounds it, and with it how long a copier that stands still
            holds up who reads the target

Invariant: the last committed copy's cursor is the group's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, cast

from multicast.consuming.batches import Batch
from multicast.consuming.consumer import Consumer, Start
from multicast.consuming.cursor import Cursor
from multicast.consuming.group_positions import kafka_group
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import control_partition
from multicast.drivers import open_driver
from multicast.drivers.clock import clock_of, seconds
from multicast.drivers.protocol import Driver, Headers, Record, TopicPartition
from multicast.errors import AmcastError, Conflict, TimedOut, UsageError
from multicast.materializing.target import CopyTarget, copied_to, last_records, open_target
from multicast.messages import reserved
from multicast.metrics.counts import CountedClient

if TYPE_CHECKING:
    from multicast.drivers.librdkafka_reader.transactions import LibrdkafkaTransactions

# Of one transaction, beyond which it takes no more polls. A tenth of the messages would make its
# fixed cost (some 10 ms) felt; ten times more delay the first copy, and come again after a kill.
MESSAGES_MAX = 20_000
BYTES_MAX = 16 * 1024 * 1024
OPEN_S = 0.2
TRANSACTION_TIMEOUT_S = 60.0  # Kafka's own default; brokers allow 15 minutes unless told otherwise
_POLL_S = 1.0  # one wait of the endless loop; it ends early when a message comes
_END_EVERY_S = 0.05  # as `Consumer.until_end`
_value_of = itemgetter(Record._fields.index("value"))
_QUIET_S = 30.0  # as `Consumer.until_end`: it outlives the failover of a broker


def materialize(
    bootstrap: str,
    *,
    topic: str,
    name: str | None = None,
    interest: Iterable[str] | None = None,
    to: str,
    start: Start | Cursor | str | datetime = "earliest",
    until_end: bool = False,
    partitions_by: Literal["key"] | None = None,
    header_prefix: str = "amcast.",
    transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
    timeout: float = _QUIET_S,
    driver: str = "librdkafka",
    client: Mapping[str, str] | None = None,
    opened: Callable[[CountedClient, CopyTarget], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Copy what a consumer delivers to the one partition of topic `to`; return how many messages.

    Blocks without end, or with `until_end` until all is copied that the logs hold now. Key, value,
    time and headers stay; headers PREFIXid, PREFIXto and PREFIXcursor are added. It goes on where
    the last committed transaction ended, whenever it was killed; `start` counts only for a target
    without copies. `partitions_by="key"` copies to the partition of each key, of any number.

    `opened` gets the consumer, for metrics, and the target; `progress` the number of copies after
    each transaction. Raises what `Consumer.poll` raises, `Fenced` once another copier of the same
    consumer and target has started, `Conflict` where another program writes to the target, and
    `UsageError` for a target that is compacted or has several partitions. See docs/materialize.md.
    """
    if partitions_by not in (None, "key"):
        raise UsageError(f'partitions_by is {partitions_by!r}; give "key"')
    if not header_prefix or "\0" in header_prefix:
        raise UsageError(f"header_prefix is {header_prefix!r}; give the beginning of header names")
    group = kafka_group(topic, copier_group(SubscriptionRequest.of(name, interest), to))
    from multicast.drivers.kafka import Admin  # noqa: PLC0415 - it loads slowly
    from multicast.drivers.librdkafka_reader.transactions import (  # noqa: PLC0415
        LibrdkafkaTransactions,
    )

    with ExitStack() as stack:
        cluster = stack.enter_context(closing(open_driver(driver, bootstrap, client)))
        with Admin(bootstrap, client) as admin:
            target = open_target(admin, topic, to, by_key=partitions_by is not None)
        transactions = LibrdkafkaTransactions(
            bootstrap,
            client,
            topic=to,
            partition=-1 if partitions_by else 0,
            group=group,
            timeout_s=seconds(transaction_timeout_s),
        )
        stack.enter_context(closing(transactions))
        about = {"topic": topic, "group": group, "header_prefix": header_prefix}
        copier = Copier(cluster, transactions, target=target, **about)
        with copier.open(name, interest, start) as consumer:
            if opened is not None:
                opened(consumer, target)
            copier.copy_all(consumer, until_end=until_end, timeout=timeout, progress=progress)
        return copier.copied


def copier_group(request: SubscriptionRequest, to: str) -> str:
    """Name the group of a consumer and a target; no topic's name has an "@"."""
    return f"{request.name or '+'.join(request.interest or ())}@{to}"


class _CommittingDriver:
    """A driver whose commits end the transaction: a `Consumer` with it commits with its copies.

    All other calls are those of the driver.
    """

    def __init__(self, driver: Driver, transactions: LibrdkafkaTransactions) -> None:
        self._driver = driver
        self.commit = transactions.commit
        self.committed = transactions.committed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


class Copier:
    """Copies by transactions; `open`, then `copy_all`."""

    def __init__(
        self,
        driver: Driver,
        transactions: LibrdkafkaTransactions,
        *,
        topic: str,
        target: CopyTarget,
        group: str,
        header_prefix: str,
    ) -> None:
        self.copied = 0
        self._driver = driver
        self._clock = clock_of(driver)
        self._transactions = transactions
        self._topic = topic
        self._target = target
        self._group = group
        names = (f"{header_prefix}{name}" for name in ("id", "to", "cursor"))
        self._id, self._to, self._cursor = names
        self._next: int | None = None  # the offset of the next first copy, if only copies come

    def open(
        self,
        name: str | None,
        interest: Iterable[str] | None,
        start: Start | Cursor | str | datetime,
    ) -> Consumer:
        """Fence others, AFTER that read where they have ended, and open the consumer there."""
        control = control_partition(self._topic)
        self._driver.committed(self._group, [control])  # names a missing right; librdkafka waits
        self._transactions.fence()
        _, text = self._transactions.committed(self._group, [control]).get(control, (0, ""))
        stored = Cursor.parse(text) if text else None
        copied = self._copied(stored)
        return Consumer(
            topic=self._topic,
            name=name,
            interest=interest,
            group=self._group.removeprefix(f"amcast.{self._topic}."),
            start=copied or start,
            committed=copied == stored,
            driver=cast("Driver", _CommittingDriver(self._driver, self._transactions)),
        )

    def _copied(self, stored: Cursor | None) -> Cursor | None:
        """Give the cursor up to which the target holds copies, as target and group say."""
        places = [TopicPartition(self._target.topic, n) for n in range(self._target.partitions)]
        records = last_records(self._driver, places)
        stable = self._driver.last_stable_offsets(places)
        ends = self._driver.high_watermarks(places)
        if stable != ends:  # ours has ended
            raise Conflict(
                f"another program has a transaction open in {self._target.topic}; copy to a topic "
                f"of its own"
            )
        if len(places) == 1:
            self._next = ends[places[0]]
        last = [records[place] for place in places if place in records]
        return copied_to(self._target.topic, last, stored, self._cursor, ends=ends.values())

    def copy_all(
        self,
        consumer: Consumer,
        *,
        until_end: bool,
        timeout: float = _QUIET_S,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Copy without end, or up to the present end of the logs."""
        end = consumer.end() if until_end else None
        silence_ends = self._clock.monotonic() + timeout
        while True:
            batches = consumer.poll(_POLL_S if end is None else _END_EVERY_S)
            if batches:
                self._transaction(consumer, batches)
                silence_ends = self._clock.monotonic() + timeout
                if progress is not None:
                    progress(self.copied)
            elif end is not None and (cause := consumer.lacks(end)) is None:
                return
            elif end is not None and self._clock.monotonic() > silence_ends:
                raise TimedOut(f"no message came for {timeout:g} s: {cause}")

    def _transaction(self, consumer: Consumer, batches: Sequence[Batch]) -> None:
        """Copy these batches and what comes meanwhile, and commit behind them.

        What the consumer raises meanwhile is raised once the copies before it are committed.
        """
        count = size = 0
        failure: AmcastError | None = None
        closes_at = self._clock.monotonic() + OPEN_S
        self._transactions.begin()
        try:
            while batches:
                for batch in batches:
                    size += self._copy(batch, is_last=batch is batches[-1])
                    count += len(batch.records)
                is_full = count >= MESSAGES_MAX or size >= BYTES_MAX
                if is_full or self._clock.monotonic() >= closes_at:
                    break
                try:
                    batches = consumer.poll(0.0)
                except AmcastError as error:
                    failure, batches = error, []
            self._refuse_others(self._transactions.stored(), count)
            consumer.commit()
        except BaseException:
            self._transactions.abort()
            raise
        self.copied += count
        if failure is not None:
            raise failure

    def _copy(self, batch: Batch, *, is_last: bool) -> int:
        """Copy a batch; return the bytes of its payloads."""
        self._transactions.copy(batch.records, self._headers(batch, is_last=is_last))
        return sum(map(len, filter(None, map(_value_of, batch.records))))

    def _headers(self, batch: Batch, *, is_last: bool) -> Iterator[Headers]:
        """Give each copy's headers, one after the other: to hold them all takes twice the time.

        The last copy has the whole cursor, which proves what it says: a transaction may end there.
        To compute one for each copy takes longer than all else.
        """
        name, name_of_cursor = self._id, self._cursor
        to = (self._to, ",".join(batch.to).encode())
        log = f"{batch.log.label}:".encode()
        place = f"{batch.epoch}/{batch.source}/{batch.record}/{batch.run}/".encode()
        last = batch.records[-1] if is_last else None
        for record in batch.records:
            cursor = b"%b%d" % (place, record.offset + 1)
            if record is last:
                cursor = str(batch.cursor()).encode()
            ours = [(name, b"%b%d" % (log, record.offset)), to, (name_of_cursor, cursor)]
            if record.headers:
                yield [*(pair for pair in record.headers if not reserved(pair[0])), *ours]
            else:
                yield ours

    def _refuse_others(self, first: int, count: int) -> None:
        """Raise `Conflict` if the first of these copies is not where the last transaction ended."""
        if self._next is None or first < 0:
            self._next = None
            return
        if first != self._next:
            raise Conflict(
                f"another program writes to {self._target.topic}: this transaction begins at "
                f"offset {first}, and the last one ended at {self._next}; copy to a topic of its "
                f"own"
            )
        self._next = first + count + 1  # behind the transaction's end, which is a record, too
