"""A workload: what is measured, read once from TOML into one immutable value.

Goes in: the text of a workload file. Comes out: a `Workload` in which every value makes sense, or
one `InvalidWorkload` whose sentence names the key. No Kafka, clock or chance here.

    kind        plain       `size` producers, partitions and consumers, each of which reads all
                            partitions, without order
                one         one collector that orders `size` partitions, one consumer of all
                tree        a chain of `size` collectors that share a partition; the consumer is
                            that of the last, so a shared message crosses all of them
                bottleneck  `size` consumers, each with a collector, that share a partition: one
                            collector decides it, and all others follow that one
    to          "shared": messages go to the shared partition; "own": to the consumers' own ones
    load        messages/s, sent at intended times whatever comes back (open loop), or
                "saturate": as fast as the producers can; "backlog": all are there, in order,
                before reading begins; "10%": open loop at that share of the rate that plain
                Kafka reaches in first, saturated rounds of the same run, which have four times as
                many messages; then a round ends after two and a half seconds
    messages    measured in one round, after the first `warm_up` of it, which are not
    pairs       rounds of each arm, interleaved A B A B; ratios are taken pair by pair
    arms        what is compared: see ARMS; the first is what the others are divided by
    seed        decides which message goes to which partition, and its bytes

The poster labels a data set by r = log(number of messages) / log(bytes of a message).
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any

KINDS = ("plain", "one", "tree", "bottleneck")
ARMS = {
    "plain": "the same partitions, messages and clients, without any order between partitions",
    "ordered": "this project's multicast through the workload's tree, announced as usual",
    "ordered-plain": "the same tree and consumers; a plain Kafka producer, which announces nothing",
    "single-root": "this project's multicast through one collector for all partitions",
    "one-partition": "all messages in one partition, of which each consumer keeps its own",
    "algorithm1": "the poster's scheme: kafka-python, an ID a message, one collector",
}
DRIVERS = ("kafka-python", "librdkafka")
SATURATE = "saturate"
BACKLOG = "backlog"
STAMP_BYTES = 24
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_PERCENT = re.compile(r"[0-9]{1,3}(\.[0-9]+)?%")
SIZE_MAX = 32
ORDERING = ("ordered", "ordered-plain", "single-root")


class InvalidWorkload(ValueError):
    """The workload cannot be used; the text is one sentence naming the key."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A checked workload. Sizes in bytes, rates in messages/s over all producers."""

    name: str
    kind: str
    size: int
    message_bytes: int
    load: float | str
    messages: int
    warm_up: int
    pairs: int
    seed: int
    driver: str
    to: str
    producers: int
    arms: tuple[str, ...]

    @property
    def rate(self) -> float | None:
        """The intended messages/s; None where the clients' own speed is the rate."""
        return None if isinstance(self.load, str) else self.load

    @property
    def share(self) -> float | None:
        """What share of plain Kafka's maximum rate is asked for; None where none is."""
        if isinstance(self.load, str) and self.load.endswith("%"):
            return float(self.load[:-1]) / 100
        return None

    @property
    def label(self) -> float:
        """The poster's r of this data set."""
        return math.log(self.messages) / math.log(self.message_bytes)

    def destinations(self, choices: Sequence[int]) -> list[int]:
        """Draw the partition of each message of a round, the warm-up's first."""
        rng = random.Random(self.seed)  # noqa: S311 - a repeatable draw is what is wanted
        return rng.choices(choices, k=self.warm_up + self.messages)


def load(text: str, *, name: str, changes: Sequence[str] = ()) -> Workload:
    """Read the text of a workload file; `changes` are "key=value", stronger than the file."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise InvalidWorkload(f"{name} is not TOML: {wrong}") from wrong
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise InvalidWorkload(f"{change!r} is not a change; write key=value")
        document[key.strip()] = _value(value.strip())
    return from_document(document, name=PurePath(name).stem)


def _value(text: str) -> Any:
    """Read a value as TOML does; what is no TOML value is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def from_document(document: Mapping[str, Any], *, name: str) -> Workload:
    """Check a parsed workload file. Raises `InvalidWorkload`."""
    known = [field.name for field in fields(Workload)]
    for key in document:
        if key not in known:
            raise InvalidWorkload(f"{key} is not a key of a workload; known are {', '.join(known)}")
    kind = _choice(document, "kind", KINDS)
    size = _whole(document, "size", 1, SIZE_MAX)
    if kind == "one" and size < 2:
        raise InvalidWorkload("size is 1, and one partition needs no collector; kind one needs 2")
    load_ = _load(document)
    made = Workload(
        name=_text(document, "name", name),
        kind=kind,
        size=size,
        message_bytes=_whole(document, "message_bytes", STAMP_BYTES, MESSAGE_BYTES_MAX),
        load=load_,
        messages=_whole(document, "messages", 1, 100_000_000),
        warm_up=_whole(document, "warm_up", 0, 100_000_000, default=0),
        pairs=_whole(document, "pairs", 1, 1000, default=7),
        seed=_whole(document, "seed", 0, 2**63 - 1, default=1),
        driver=_choice(document, "driver", DRIVERS, default="librdkafka"),
        to=_choice(document, "to", ("shared", "own"), default="shared"),
        producers=_whole(
            document, "producers", 1, SIZE_MAX, default=size if kind == "plain" else 1
        ),
        arms=_arms(document, kind),
    )
    if "algorithm1" in made.arms and kind != "one":
        raise InvalidWorkload("arm algorithm1 needs kind one")
    return made


def _arms(document: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    default = ["plain"] if kind == "plain" else ["plain", "ordered"]
    found = document.get("arms", default)
    if not isinstance(found, list) or not found:
        raise InvalidWorkload(f"arms is {found!r}; write a list of {', '.join(ARMS)}")
    for arm in found:
        if arm not in tuple(ARMS):
            raise InvalidWorkload(f"arm {arm!r} is not known; known are {', '.join(ARMS)}")
        if kind == "plain" and arm not in ("plain", "one-partition"):
            raise InvalidWorkload(f"arm {arm!r} orders, and kind plain has nothing to order")
    if len(set(found)) != len(found):
        raise InvalidWorkload("arms names one arm twice")
    return tuple(found)


def _load(document: Mapping[str, Any]) -> float | str:
    found = _required(document, "load")
    if found in (SATURATE, BACKLOG):
        return str(found)
    if isinstance(found, str) and _PERCENT.fullmatch(found) and 0 < float(found[:-1]) <= 100:
        return found
    number = isinstance(found, int | float) and not isinstance(found, bool)
    if not number or not 0 < found <= 10_000_000:
        raise InvalidWorkload(
            f'load is {found!r}; write messages/s, above 0 and at most 10000000, or "{SATURATE}", '
            f'"{BACKLOG}" or a share of plain Kafka\'s maximum such as "10%"'
        )
    return float(found)


def _required(document: Mapping[str, Any], key: str) -> Any:
    if key not in document:
        raise InvalidWorkload(f"the workload has no key {key}")
    return document[key]


def _text(document: Mapping[str, Any], key: str, default: str) -> str:
    found = document.get(key, default)
    if not isinstance(found, str) or not found:
        raise InvalidWorkload(f"{key} is {found!r}; write a text")
    return found


def _choice(
    document: Mapping[str, Any], key: str, known: Sequence[str], default: str | None = None
) -> str:
    found = _required(document, key) if default is None else document.get(key, default)
    if found not in known:
        raise InvalidWorkload(f"{key} is {found!r}; known are {', '.join(known)}")
    return str(found)


def _whole(
    document: Mapping[str, Any], key: str, least: int, most: int, default: int | None = None
) -> int:
    found = _required(document, key) if default is None else document.get(key, default)
    whole = isinstance(found, int) and not isinstance(found, bool)
    if not whole or not least <= found <= most:
        raise InvalidWorkload(f"{key} is {found!r}; write a whole number from {least} to {most}")
    return int(found)
