"""The reader of the interest file, which an operator writes.

`parse` takes the TOML text and gives an immutable `InterestFile`, in which every name is known and
every set is sorted; otherwise it raises `InvalidInterests` with the line or the name. Later code
does not check this input again. No planning here.

    partition     an address; its index in `partitions` is its Kafka partition of the data topic
    count         in place of a list: `partitions = 100` names P1 … P100
    destination   a declared set of two or more partitions; its index in `destinations` is its Kafka
                  partition of the topic `A.groups`
    range         in a set: "P1..P50" is these two and what `partitions` names between them
    interest      the non-empty set of partitions that a consumer subscribes to
    through       narrower sets whose messages producers store in the log of a declared set
    limit         hard: a plan that exceeds it is refused; soft ("wanted"): to exceed it costs
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from topology.tree import InvalidPlan, Plan, log_name

NAME = re.compile(r"[A-Za-z0-9._-]+")
# Kafka allows 249 characters; the longest topic we derive adds ".collectors" to the data topic's.
NAME_LENGTH_MAX = 238
# Of a count of partitions. Kafka's own advice ends at some 200,000 for a whole cluster; without a
# bound a slip of the finger would fill the memory with names.
PARTITION_COUNT_MAX = 100_000
# Of rates, weights, latencies and limits. The planner multiplies three of them, and sums over all
# consumers: with this bound that is exact to 1e-15, and far from what a float can hold.
NUMBER_MAX = 10**15
_SHOWN_MAX = 30  # characters of a number in a sentence; a float has at most 24


class InvalidInterests(ValueError):
    """The interest file is not valid; the message is one sentence that names the line or entry."""


@dataclass(frozen=True, slots=True)
class Interest:
    """A consumer's name, its partitions (sorted), and the weight of its latency in the cost."""

    name: str
    interest: tuple[str, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """The limits of a plan; None: no limit.

    Hard: `collector_rate_max`, messages/s of all logs in one bag; `levels_max`, collectors on the
    longest path; `collectors_max` and `collectors_per_host_max`, counts of collectors.
    Soft: `collector_rate_wanted`, each message/s above it costs `phi`.
    """

    collector_rate_max: float | None = None
    levels_max: int | None = None
    collectors_max: int | None = None
    collectors_per_host_max: int | None = None
    collector_rate_wanted: float | None = None


@dataclass(frozen=True, slots=True)
class Hosts:
    """The machines that may run collectors; `latency[a][b]` is the cost of a hop from a to b.

    `leaders` names the host of a log's leader; a log without an entry costs the mean of all hosts.
    """

    names: tuple[str, ...]
    latency: tuple[tuple[float, ...], ...]
    leaders: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InterestFile:
    """A valid interest file. Files with equal contents have equal `input_hash`."""

    topic: str
    partitions: tuple[str, ...]
    destinations: tuple[tuple[str, ...], ...]
    consumers: tuple[Interest, ...]
    rates: Mapping[str, float] = field(default_factory=dict)
    limits: PlanLimits = field(default_factory=PlanLimits)
    hosts: Hosts | None = None
    through: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def input_hash(self) -> str:
        """SHA-256, in hexadecimal, of the canonical JSON of everything the plan depends on."""
        document = asdict(self)
        if not self.through:  # the hash of a file without it is that of earlier programs
            del document["through"]
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def rate(self, log: str) -> float:
        """Give the messages/s of a log; 1.0 if the file states none."""
        return self.rates.get(log, 1.0)

    def dropped(self) -> list[tuple[str, str, float]]:
        """Give the messages/s that a consumer reads of a log and drops, if there are any."""
        found = []
        for consumer in self.consumers:
            wanted = set(consumer.interest)
            for log, rates in self.through.items():
                sets = [(set(to.split("+")), rate) for to, rate in rates.items()]
                rate = sum(rate for to, rate in sets if wanted.isdisjoint(to))
                if rate and not wanted.isdisjoint(log.split("+")):
                    found.append((consumer.name, log, rate))
        return found


def is_name(text: str) -> bool:
    """Whether a partition, consumer, collector or host may have this name."""
    return NAME.fullmatch(text) is not None and len(text) <= NAME_LENGTH_MAX


def is_topic(text: str) -> bool:
    """Whether a data topic may have this name."""
    return is_name(text) and text not in {".", ".."}


def refuse_names(plan: Plan) -> None:
    """Raise `InvalidPlan` for a plan with a name that no interest file may have.

    For new plans; one that is in force keeps its names.
    """
    names = {
        "partition": plan.partitions,
        "collector": [node.name for node in plan.collectors],
        "consumer": [entry.name for entry in plan.consumers],
        "host": [node.host for node in plan.collectors if node.host is not None],
    }
    wrong = [(what, name) for what, each in names.items() for name in each if not is_name(name)]
    if not is_topic(plan.topic):
        wrong.append(("topic", plan.topic))
    for what, name in wrong:
        raise InvalidPlan(
            f"{what} {name!r} is not a valid name: use 1 to {NAME_LENGTH_MAX} characters of "
            f"A-Z a-z 0-9 . _ -"
        )


def parse(text: str) -> InterestFile:
    """Read the text of an interest file. Raises `InvalidInterests`."""
    return from_document(read_toml(text, "the interest file"))


def read_toml(text: str, what: str) -> dict[str, Any]:
    """Read TOML; raises `InvalidInterests`, which says `what` it is."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as wrong:  # TOMLDecodeError is a ValueError
        raise InvalidInterests(f"{what} is not TOML: {wrong}") from wrong


def from_document(document: Mapping[str, Any]) -> InterestFile:
    """Check a parsed interest file. Raises `InvalidInterests`."""
    known = ("topic", "partitions", "destinations", "consumer", "rates", "limits", "hosts")
    refuse_unknown(document, (*known, "through"), "the interest file")
    topic = _name(_required(document, "topic", "the interest file"), "topic")
    if not is_topic(topic):
        raise InvalidInterests(f"topic {topic!r} is not allowed by Kafka; choose another name")
    partitions = _partitions(document)
    indices = {name: index for index, name in enumerate(partitions)}
    destinations = _destinations(document.get("destinations", []), indices)
    logs = {*partitions, *("+".join(to) for to in destinations)}
    rates, through = _rates(document.get("rates", {}), logs), _through(document, logs)
    for log, narrower in through.items():  # they are part of what the log has
        rates[log] = max(rates.get(log, 0.0), sum(narrower.values()))
    limits = _limits(document.get("limits", {}))
    if limits.collectors_per_host_max is not None and "hosts" not in document:
        raise InvalidInterests(
            "[limits] has collectors_per_host_max, but there is no [hosts]: name the hosts, or "
            "remove the limit"
        )
    return InterestFile(
        topic=topic,
        partitions=partitions,
        destinations=destinations,
        consumers=_consumers(document.get("consumer", []), indices),
        rates=rates,
        limits=limits,
        hosts=_hosts(document["hosts"], logs) if "hosts" in document else None,
        through=through,
    )


def _partitions(document: Mapping[str, Any]) -> tuple[str, ...]:
    value = _required(document, "partitions", "the interest file")
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= PARTITION_COUNT_MAX:
            raise InvalidInterests(
                f"partitions is {value}: give a count from 1 to {PARTITION_COUNT_MAX}, or a list "
                f"of names"
            )
        return tuple(f"P{number}" for number in range(1, value + 1))
    if not isinstance(value, list):
        raise InvalidInterests(
            f"partitions is {value!r}: give a count, like 100 for P1 to P100, or a list of names, "
            f'like ["P1", "P2"]'
        )
    if not value:
        raise InvalidInterests("partitions is empty: name at least one partition")
    partitions = tuple(_name(name, "partition") for name in value)
    _refuse_twice("partition", partitions)
    return partitions


def _destinations(value: Any, known: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    sets = []
    for number, entry in enumerate(_list(value, "destinations"), start=1):
        to = _subset(entry, known, f"destination set number {number}")
        if len(to) == 1:
            raise InvalidInterests(
                f"destination set number {number} is the single partition {to[0]}, which is "
                f"always declared; remove it"
            )
        sets.append(to)
    _refuse_twice("destination set", ["+".join(to) for to in sets])
    return tuple(sets)


def _consumers(value: Any, known: Mapping[str, int]) -> tuple[Interest, ...]:
    if isinstance(value, dict):
        raise InvalidInterests(
            "[consumer] has single brackets: write [[consumer]] above each consumer"
        )
    consumers = []
    for number, entry in enumerate(_list(value, "consumer"), start=1):
        where = f"consumer number {number}"
        if not isinstance(entry, dict):
            raise InvalidInterests(f"{where} is not a table: write [[consumer]] above it")
        name = _name(_required(entry, "name", where), f"name of {where}")
        where = f"consumer {name}"
        refuse_unknown(entry, ("name", "interest", "weight"), where)
        interest = _subset(_required(entry, "interest", where), known, f"interest of {where}")
        weight = read_number(entry.get("weight", 1.0), f"weight of {where}")
        consumers.append(Interest(name=name, interest=interest, weight=weight))
    if not consumers:
        raise InvalidInterests("the interest file names no consumer: add a [[consumer]] table")
    _refuse_twice("consumer", [consumer.name for consumer in consumers])
    return tuple(consumers)


def _rates(value: Any, logs: set[str]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for key, rate in sorted(_table(value, "rates").items()):
        name = _declared(key, logs, "rates")
        if name in rates:
            raise InvalidInterests(f"[rates] names {name} twice")
        rates[name] = read_number(rate, f"rate of {key}")
    return rates


def _through(document: Mapping[str, Any], logs: set[str]) -> dict[str, dict[str, float]]:
    through = {}
    for key, narrower in sorted(_table(document.get("through", {}), "through").items()):
        log, rates = _declared(key, logs, "through"), {}
        for to, rate in sorted(_table(narrower, f"through of {key}").items()):
            if not set(to.split("+")) < set(log.split("+")):
                raise InvalidInterests(f"[through] names {to}, which is not a part of {key}")
            rates[log_name(to.split("+"))] = read_number(rate, f"rate of {to} through {key}")
        through[log] = rates
    return through


def _limits(value: Any) -> PlanLimits:
    table = _table(value, "limits")
    counts = ("levels_max", "collectors_max", "collectors_per_host_max")
    rates = ("collector_rate_max", "collector_rate_wanted")
    refuse_unknown(table, (*counts, *rates), "[limits]")
    limits: dict[str, Any] = {key: read_count(table[key], key) for key in counts if key in table}
    limits |= {key: read_number(table[key], key) for key in rates if key in table}
    return PlanLimits(**limits)


def _hosts(value: Any, logs: set[str]) -> Hosts:
    table = _table(value, "hosts")
    refuse_unknown(table, ("names", "latency", "leaders"), "[hosts]")
    names = tuple(
        _name(name, "host") for name in _list(_required(table, "names", "[hosts]"), "hosts.names")
    )
    if not names:
        raise InvalidInterests("hosts.names is empty: name at least one host")
    _refuse_twice("host", names)
    rows = _list(_required(table, "latency", "[hosts]"), "hosts.latency")
    matrix = tuple(
        tuple(read_number(cell, f"latency from {names[0]}") for cell in _list(row, "a latency row"))
        for row in rows
    )
    if len(matrix) != len(names) or any(len(row) != len(names) for row in matrix):
        raise InvalidInterests(
            f"hosts.latency must have {len(names)} rows of {len(names)} numbers, one per host"
        )
    leaders: dict[str, str] = {}
    for key, host in sorted(_table(table.get("leaders", {}), "hosts.leaders").items()):
        log = _declared(key, logs, "hosts.leaders")
        if host not in names:
            raise InvalidInterests(
                f"[hosts.leaders] gives {key} the leader {host!r}, which hosts.names does not list"
            )
        leaders[log] = host
    return Hosts(names=names, latency=matrix, leaders=leaders)


# -- forms ----------------------------------------------------------------------------------


def _required(table: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in table:
        raise InvalidInterests(f"{where} has no {key!r}")
    return table[key]


def _declared(key: str, logs: set[str], where: str) -> str:
    log = log_name(key.split("+"))
    if log not in logs:
        raise InvalidInterests(f"[{where}] names {key}, which is not a declared destination set")
    return log


def refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise `InvalidInterests` if a table has a key that is not known."""
    for key in table:
        if key not in known:
            raise InvalidInterests(f"{where} has an unknown key {key!r}; known: {', '.join(known)}")


def _refuse_twice(what: str, names: list[str] | tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInterests(f"{what} {name} is named twice")
        seen.add(name)


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInterests(f"{where} is {value!r}, not a table")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInterests(f"{where} is {value!r}, not a list")
    return value


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise InvalidInterests(
            f"{what} {value!r} is not a valid name: use 1 to {NAME_LENGTH_MAX} characters of "
            f"A-Z a-z 0-9 . _ -"
        )
    return value


def read_number(value: Any, what: str) -> float:
    """Read a number from 0 to `NUMBER_MAX`; raises `InvalidInterests`, which says `what` it is."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidInterests(f"{what} is {value!r}, not a number")
    if not 0 <= value <= NUMBER_MAX:  # nor is NaN
        raise InvalidInterests(f"{what} is {_short(value)}, not a number from 0 to {NUMBER_MAX:g}")
    return float(value)


def read_count(value: Any, what: str) -> int:
    """Read a whole number from 1 to `NUMBER_MAX`; raises `InvalidInterests`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= NUMBER_MAX:
        raise InvalidInterests(
            f"{what} is {_short(value)}, not a whole number from 1 to {NUMBER_MAX:g}"
        )
    return value


def _short(value: Any) -> str:
    """Write a value; of a number of hundreds of digits only the first ones."""
    written = repr(value)
    return written if len(written) <= _SHOWN_MAX else f"{written[:_SHOWN_MAX]}…"


def _subset(value: Any, known: Mapping[str, int], what: str) -> tuple[str, ...]:
    """Read a set of partitions; `known` gives the index of each that exists, in their order."""
    if not _list(value, what):
        raise InvalidInterests(f"{what} is empty")
    names: list[str] = []
    for name in value:
        if isinstance(name, str) and name in known:
            names.append(name)
        else:
            names += _range(name, known, what)
    _refuse_twice(f"{what}: partition", names)
    return tuple(sorted(names))


def _range(value: Any, known: Mapping[str, int], what: str) -> list[str]:
    """Give the partitions of a range, "P1..P50", both ends included."""
    first, dots, last = value.partition("..") if isinstance(value, str) else ("", "", "")
    if not dots or first not in known or last not in known:
        unknown = value if not dots else first if first not in known else last
        raise InvalidInterests(f"{what} names an unknown partition {unknown!r}")
    if known[first] > known[last]:
        raise InvalidInterests(f"{what}: the range {value!r} ends before it begins")
    return list(known)[known[first] : known[last] + 1]
