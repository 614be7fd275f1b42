"""The plan of one epoch: its logs, its collectors with bags and parents, and its consumers.

A `Plan` is immutable, and every process reads it in the same way. The digest of its canonical bytes
identifies the epoch's layout. No Kafka, no solver and no files here.

    partition   an address of messages, "P1"; the messages to it may be in several logs
    log         the Kafka partition that holds the messages of one destination set; its name is the
                set, sorted and joined by "+": "P1+P3"
    bag         the logs whose order one collector knows
    top         of a log: the one collector at which it enters the order
    interest    the partitions that a consumer subscribes to

Invariants (`Plan` refuses a document that breaks one):
    each log in a bag is a log of the plan, each parent a collector of the plan;
    the parents form a forest;
    the collectors whose bags hold a given log form a connected subtree (running intersection).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from topology import plan_fields as fields
from topology.documents import NotReadable, json_object

SCHEMA_VERSION = 1  # of a plan's JSON; `from_json` refuses another
DIGEST_BYTES = 16  # of BLAKE2b; against chance, since writers of the topics are trusted
EPOCH_MAX = 10**9 - 1  # `multicast.messages.EPOCH_DIGITS_MAX` digits
PARTITION_MAX = 2**31 - 2  # Kafka's counts of partitions are int32
PHI_DEFAULT = 10.0  # hops that one foreign message costs; the planner's default
# Of the order records in an epoch's streams (docs/protocol.md). No program reads another one.
ORDER_VERSION = 3
# Of partitions and collectors: keys, cursors and message IDs have other characters between them.
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_ORDER_VERSION_UNNAMED = 1  # of the plans of earlier programs, which name none
# The greatest numbers of fields that are not offsets.
_MOST = dict.fromkeys(("partition", "stream"), PARTITION_MAX)
_MOST |= dict.fromkeys(("epoch", "base_epoch"), EPOCH_MAX)
_Part = TypeVar("_Part")


class InvalidPlan(ValueError):
    """The document is not a plan; the message names the entry and what is wrong with it."""


def log_name(to: Iterable[str]) -> str:
    """Give the name of a destination set's log: its partitions, sorted and joined by "+"."""
    return "+".join(sorted(set(to)))


@dataclass(frozen=True, slots=True)
class Log:
    """One declared destination set and the Kafka partition that holds its messages.

    `first` is the offset at which its order begins in the first epoch that has the log: 0 for a
    new topic, the log start offset for a topic that held messages before. A plan with a higher
    `life` than the one before accepts that the log has lost its end.
    """

    name: str
    topic: str
    partition: int
    first: int = 0
    life: int = 0

    @property
    def to(self) -> tuple[str, ...]:
        """The destination set, sorted."""
        return tuple(self.name.split("+"))

    @property
    def label(self) -> str:
        """The name and the life, as in the IDs of its messages: "P1", in its next life "P1~1"."""
        return f"{self.name}~{self.life}" if self.life else self.name


@dataclass(frozen=True, slots=True)
class CollectorSpec:
    """A collector as the plan describes it. `stream` is its Kafka partition of the order topic.

    No record of this epoch has an offset below `stream_first` in that partition.
    """

    name: str
    bag: tuple[str, ...]
    parent: str | None
    stream: int
    stream_first: int = 0
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A consumer's name, its interest, and the collector that it reads.

    `collector` is None if the interest meets one log only: the log is its own order.
    """

    name: str
    interest: tuple[str, ...]
    collector: str | None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Objective:
    """The figures that the planner states for its plan: cost = hops + phi * (foreign + excess).

    `hops` sums, over consumers, the rate of each log wanted times the collectors that it passes,
    weighted. `foreign` sums the rates of entries where they are handled without a use for them: a
    collector passes on an entry that no consumer of its own wants; a collector drops an entry of
    its parent's stream; a consumer drops an entry of its collector's (weighted). `excess` is the
    load above a soft limit. `gap` = (cost - proven lower bound) / cost: 0.0 is proven optimal, and
    None, nothing was proven.
    """

    hops: float
    foreign: float
    cost: float
    gap: float | None
    excess: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The layout of one epoch. Immutable.

    Equal plans that this program has made have equal digests; see `digest` for one that was read.

    `order_version` is the version of the order records in all streams of the epoch.

    `tickets`: whether producers write the order of their messages in this epoch. If not, collectors
    order all messages, as in a topic whose producers are not amcast's.
    """

    topic: str
    epoch: int
    base_epoch: int
    cluster_id: str
    input_hash: str
    partitions: tuple[str, ...]
    logs: tuple[Log, ...]
    collectors: tuple[CollectorSpec, ...]
    consumers: tuple[Subscription, ...]
    objective: Objective
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    # The input of the objective, so that anyone can compute it again.
    phi: float = PHI_DEFAULT
    rates: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    hosts: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    order_version: int = ORDER_VERSION
    tickets: bool = True

    def __post_init__(self) -> None:
        """Raise `InvalidPlan` if names are missing or double, or an invariant is broken."""
        _refuse_twice("log", [log.name for log in self.logs])
        _refuse_twice("collector", [node.name for node in self.collectors])
        _refuse_twice("consumer", [entry.name for entry in self.consumers])
        _refuse_twice("stream", [str(node.stream) for node in self.collectors])
        _refuse_twice("Kafka partition", [f"{log.topic}/{log.partition}" for log in self.logs])
        self._refuse_wrong_names()
        self._refuse_unknown_names()
        for node in self.collectors:
            self._refuse_cycle(node)
        tops: dict[str, list[str]] = {name: [] for node in self.collectors for name in node.bag}
        for node in self.collectors:
            for name in self._entering(node):
                tops[name].append(node.name)
        for name, entries in sorted(tops.items()):
            if len(entries) != 1:
                raise InvalidPlan(
                    f"log {name} enters the order at {' and '.join(entries)}, not at one collector"
                )

    def _refuse_unknown_names(self) -> None:
        names = {node.name for node in self.collectors}
        partitions = set(self.partitions)
        for log in self.logs:
            unknown = sorted(set(log.to) - partitions)
            if unknown:
                raise InvalidPlan(f"log {log.name} names an unknown partition {unknown[0]}")
        logs = {log.name for log in self.logs}
        for node in self.collectors:
            unknown = sorted(set(node.bag) - logs)
            if unknown:
                raise InvalidPlan(f"collector {node.name} holds an unknown log {unknown[0]}")
            if node.parent is not None and node.parent not in names:
                raise InvalidPlan(f"collector {node.name} has an unknown parent {node.parent}")
        for entry in self.consumers:
            if entry.collector is not None and entry.collector not in names:
                raise InvalidPlan(
                    f"consumer {entry.name} reads an unknown collector {entry.collector}"
                )

    def _refuse_wrong_names(self) -> None:
        _refuse_twice("partition", list(self.partitions))
        for name in (*self.partitions, *(node.name for node in self.collectors)):
            if not _NAME.fullmatch(name):
                raise InvalidPlan(f"{name!r} is no name; use the characters A-Z, a-z, 0-9, . _ -")
        for log in self.logs:
            if log.name != log_name(log.to):
                raise InvalidPlan(f"log {log.name!r} is not named by its partitions, sorted")

    def _refuse_cycle(self, node: CollectorSpec) -> None:
        seen = {node.name}
        parent = node.parent
        while parent is not None:
            if parent in seen:
                raise InvalidPlan(f"collector {node.name} is its own ancestor")
            seen.add(parent)
            parent = self.collector(parent).parent

    def _entering(self, node: CollectorSpec) -> list[str]:
        """List the logs of a bag that the parent's bag does not hold."""
        above = set() if node.parent is None else set(self.collector(node.parent).bag)
        return [name for name in dict.fromkeys(node.bag) if name not in above]

    # -- look-ups ---------------------------------------------------------------------------

    @cached_property
    def _logs(self) -> dict[str, Log]:
        return {log.name: log for log in self.logs}

    @cached_property
    def _collectors(self) -> dict[str, CollectorSpec]:
        return {node.name: node for node in self.collectors}

    @cached_property
    def _subscriptions(self) -> dict[str, Subscription]:
        return {entry.name: entry for entry in self.consumers}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {log.name: number for number, log in enumerate(self.logs)}

    @cached_property
    def _tops(self) -> dict[str, CollectorSpec]:
        return {name: node for node in self.collectors for name in self._entering(node)}

    @cached_property
    def _met(self) -> dict[str, list[int]]:
        """Give for each partition the numbers of the logs whose destination sets contain it."""
        met: dict[str, list[int]] = {}
        for number, log in enumerate(self.logs):
            for name in log.to:
                met.setdefault(name, []).append(number)
        return met

    def log(self, name: str) -> Log:
        """Look up a log by its name; raises `KeyError` if there is none."""
        return self._logs[name]

    def has_log(self, name: str) -> bool:
        """Whether that destination set is declared."""
        return name in self._logs

    def number(self, name: str) -> int:
        """Give the index of a log in `logs`; order records refer to the log by it."""
        return self._numbers[name]

    def collector(self, name: str) -> CollectorSpec:
        """Look up a collector by its name; raises `KeyError` if there is none."""
        return self._collectors[name]

    def path(self, collector: str | None) -> list[CollectorSpec]:
        """List the collectors from this one up to its root; none for None."""
        path: list[CollectorSpec] = []
        while collector is not None:
            path.append(self.collector(collector))
            collector = path[-1].parent
        return path

    def has_collector(self, name: str) -> bool:
        """Whether this plan has a collector of that name."""
        return name in self._collectors

    def top(self, log: str) -> CollectorSpec | None:
        """Give the collector at which the log enters the order; None: no collector orders it."""
        return self._tops.get(log)

    def own_logs(self, collector: str) -> tuple[str, ...]:
        """List the logs whose top is this collector, in the bag's order."""
        node = self.collector(collector)
        return tuple(name for name in node.bag if self._tops[name] is node)

    def logs_of(self, interest: Iterable[str]) -> tuple[Log, ...]:
        """List the logs whose destination set meets the interest, in the plan's order."""
        met = {number for name in interest for number in self._met.get(name, ())}
        return tuple(self.logs[number] for number in sorted(met))

    def cover(self, to: Iterable[str]) -> Log | None:
        """Find the log for a destination set: its own, or that of its smallest declared superset.

        Of supersets of equal size it is the first by name, so all producers pick the same one.
        None if no declared set contains it.
        """
        wanted = set(to)
        exact = self._logs.get(log_name(wanted))
        if exact is not None:
            return exact
        wider = [log for log in self.logs if wanted < set(log.to)]
        return min(wider, key=lambda log: (len(log.to), log.name), default=None)

    def collector_for(self, interest: Iterable[str]) -> CollectorSpec | None:
        """Find the collector with the smallest bag that holds all logs of an interest.

        None if no bag does. Of bags of equal size it is the first by name.
        """
        wanted = {log.name for log in self.logs_of(interest)}
        serving = [node for node in self.collectors if wanted <= set(node.bag)]
        return min(serving, key=lambda node: (len(node.bag), node.name), default=None)

    def subscription(self, consumer: str) -> Subscription | None:
        """Look up the plan's entry for a consumer; None if there is none."""
        return self._subscriptions.get(consumer)

    # -- documents --------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Give the plan as a JSON object, which other programs may read."""
        document = asdict(self)
        for log in document["logs"]:
            if not log["life"]:  # as nearly always
                del log["life"]
        return document

    def canonical(self) -> bytes:
        """Give the canonical bytes of this plan; equal for equal plans."""
        return _canonical(self.to_json())

    @cached_property
    def digest(self) -> bytes:
        """BLAKE2b of the canonical bytes, 16 bytes; of a plan that was read, of what it said.

        So programs agree that know other fields of plans.
        """
        return _digest(self.canonical())

    @staticmethod
    def from_json(document: Any, *, any_order: bool = False) -> Plan:
        """Read a plan from a JSON object. Fields that this version does not know are ignored.

        Raises `InvalidPlan` with the field's name if a field is missing or has the wrong form, and,
        without `any_order`, for an `order_version` that this program does not know.
        """
        if not isinstance(document, dict):
            raise InvalidPlan("a plan is a JSON object")
        version = document.get("schema_version")
        if type(version) is not int or version != SCHEMA_VERSION:
            raise InvalidPlan(
                f"schema_version is {version!r}; this program reads version {SCHEMA_VERSION}"
            )
        try:
            plan = _read(document)
            vars(plan)["digest"] = _digest(_canonical(document))
        except InvalidPlan:
            raise
        except NotReadable as wrong:
            raise InvalidPlan(str(wrong)) from wrong
        except KeyError as missing:
            raise InvalidPlan(f"the plan has no field {missing}") from missing
        except (TypeError, AttributeError, ValueError, OverflowError) as wrong:
            raise InvalidPlan(f"a field has the wrong form: {wrong}") from wrong
        if not any_order and plan.order_version != ORDER_VERSION:
            raise InvalidPlan(
                f"order_version is {plan.order_version}; this program reads and writes version "
                f"{ORDER_VERSION} of the order records: plan again from the interests"
            )
        return plan

    @staticmethod
    def parse(raw: bytes | str) -> Plan:
        """Read a plan from JSON. Raises `InvalidPlan` for any bytes that are not a plan."""
        try:
            return Plan.from_json(json_object(raw))
        except NotReadable as wrong:
            raise InvalidPlan(f"the plan cannot be read: {wrong}") from wrong


def _canonical(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode("ascii")


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=DIGEST_BYTES).digest()


def _read(document: dict[str, Any]) -> Plan:
    def all_of(kind: type[_Part], name: str) -> tuple[_Part, ...]:
        return tuple(fields.read(kind, entry, _MOST) for entry in fields.entries(document, name))

    logs = all_of(Log, "logs")
    # Plans of other programs may name partitions in their logs only.
    named = sorted({partition for log in logs for partition in log.to})
    partitions = document.get("partitions", named)
    if not isinstance(partitions, list) or not all(isinstance(name, str) for name in partitions):
        raise InvalidPlan(f"partitions is {partitions!r}, not a list of names")
    version = document.get("order_version", _ORDER_VERSION_UNNAMED)
    return fields.read(
        Plan,
        document,
        _MOST,
        partitions=tuple(partitions),
        logs=logs,
        collectors=all_of(CollectorSpec, "collectors"),
        consumers=all_of(Subscription, "consumers"),
        objective=fields.read(Objective, document["objective"], _MOST),
        order_version=fields.count(version, "order_version"),
    )


def _refuse_twice(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidPlan(f"the plan has {what} {name} twice")
        seen.add(name)
