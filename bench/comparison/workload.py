"""A workload, read from TOML and checked.

`load` takes the text of a workload file and returns a valid `Workload`, or raises `InvalidWorkload`
with a sentence that names the key. No Kafka, clock or randomness is used here.

    kind        one         one collector that orders `size` partitions, one consumer of all
                tree        a chain of `size` collectors that share a partition; the consumer reads
                            the last one, so a shared message passes all of them
                bottleneck  `size` consumers, each with a collector, that share a partition: one
                            collector orders it, and all others relay its order
    to          "shared": messages go to the shared partition; "own": to the consumers' other ones
    load        messages/s, sent at intended times regardless of answers (open loop), or
                "saturate": as fast as the producer can; "backlog": all messages are stored and
                ordered before reading begins; "10%": open loop at this share of plain Kafka's
                maximum, which saturated rounds with four times as many messages measure first; a
                round then lasts at most two and a half seconds
    messages    the measured messages of a round, after the first `warm_up`, which are not measured
    pairs       rounds of each arm, interleaved A B A B; ratios are taken pair by pair
    arms        what is compared (see ARMS); the others are divided by the first
    seed        decides each message's partition and its bytes

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

KINDS = ("one", "tree", "bottleneck")
ARMS = {
    "plain": "the same partitions, messages and clients, without any order between partitions",
    "ordered": "this project's multicast through the workload's tree",
    "ordered-plain": "the same tree and consumers; a plain Kafka producer, which writes no tickets",
    "single-root": "this project's multicast through one collector for all partitions",
    "one-partition": "all messages in one partition; each consumer drops those of others",
    "algorithm1": "the poster's scheme: kafka-python, one order record a message, one collector",
}
SATURATE = "saturate"
BACKLOG = "backlog"
STAMP_BYTES = 24  # the size of `stamps.pack`, the least size of a message
# Below the 100 MiB that Kafka allows a request (default of socket.request.max.bytes).
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
_PERCENT = re.compile(r"[0-9]{1,3}(\.[0-9]+)?%")
SIZE_MAX = 32  # each collector and consumer is a process, so this makes more than 60 of them
ORDERING = ("ordered", "ordered-plain", "single-root")


class InvalidWorkload(ValueError):
    """The workload is not valid; the text is one sentence that names the key."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A checked workload. Sizes in bytes, rates in messages/s."""

    name: str
    kind: str
    size: int
    message_bytes: int
    load: float | str
    messages: int
    warm_up: int
    pairs: int
    seed: int
    to: str
    arms: tuple[str, ...]

    @property
    def rate(self) -> float | None:
        """The intended messages/s; None if the clients send as fast as they can."""
        return None if isinstance(self.load, str) else self.load

    @property
    def share(self) -> float | None:
        """The load as a share of plain Kafka's maximum rate; None if it is not a share."""
        if isinstance(self.load, str) and self.load.endswith("%"):
            return float(self.load[:-1]) / 100
        return None

    @property
    def label(self) -> float:
        """The poster's r of this data set."""
        return math.log(self.messages) / math.log(self.message_bytes)

    def destinations(self, choices: Sequence[int]) -> list[int]:
        """Draw the partition of each message of a round, beginning with the warm-up."""
        rng = random.Random(self.seed)  # noqa: S311 - repeatable, not secret
        return rng.choices(choices, k=self.warm_up + self.messages)


def load(text: str, *, name: str, changes: Sequence[str] = ()) -> Workload:
    """Read the text of a workload file; `changes` ("key=value") override it."""
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
    """Read a TOML value; any other text is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def from_document(document: Mapping[str, Any], *, name: str) -> Workload:
    """Check a parsed workload file. Raises `InvalidWorkload`."""
    known = [field.name for field in fields(Workload)]
    for key in document:
        if key not in known:
            raise InvalidWorkload(f"{key} is not a key of a workload; known: {', '.join(known)}")
    kind = _choice(document, "kind", KINDS)
    size = _whole(document, "size", 1, SIZE_MAX)
    if kind == "one" and size < 2:
        raise InvalidWorkload(
            "size is 1, but one partition needs no collector; kind one needs size 2 or more"
        )
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
        to=_choice(document, "to", ("shared", "own"), default="shared"),
        arms=_arms(document),
    )
    if "algorithm1" in made.arms and kind != "one":
        raise InvalidWorkload("arm algorithm1 needs kind one")
    return made


def _arms(document: Mapping[str, Any]) -> tuple[str, ...]:
    arms = document.get("arms", ["plain", "ordered"])
    if not isinstance(arms, list) or not arms:
        raise InvalidWorkload(f"arms is {arms!r}; write a list of {', '.join(ARMS)}")
    for arm in arms:
        if arm not in tuple(ARMS):
            raise InvalidWorkload(f"arm {arm!r} is not known; known: {', '.join(ARMS)}")
    if len(set(arms)) != len(arms):
        raise InvalidWorkload("arms names one arm twice")
    return tuple(arms)


def _load(document: Mapping[str, Any]) -> float | str:
    load_ = _required(document, "load")
    if load_ in (SATURATE, BACKLOG):
        return str(load_)
    if isinstance(load_, str) and _PERCENT.fullmatch(load_) and 0 < float(load_[:-1]) <= 100:
        return load_
    number = isinstance(load_, int | float) and not isinstance(load_, bool)
    if not number or not 0 < load_ <= 10_000_000:
        raise InvalidWorkload(
            f'load is {load_!r}; write messages/s, above 0 and at most 10000000, or "{SATURATE}", '
            f'"{BACKLOG}" or a share of plain Kafka\'s maximum such as "10%"'
        )
    return float(load_)


def _required(document: Mapping[str, Any], key: str) -> Any:
    if key not in document:
        raise InvalidWorkload(f"the workload has no key {key}")
    return document[key]


def _text(document: Mapping[str, Any], key: str, default: str) -> str:
    value = document.get(key, default)
    if not isinstance(value, str) or not value:
        raise InvalidWorkload(f"{key} is {value!r}; write a text")
    return value


def _choice(
    document: Mapping[str, Any], key: str, known: Sequence[str], default: str | None = None
) -> str:
    value = _required(document, key) if default is None else document.get(key, default)
    if value not in known:
        raise InvalidWorkload(f"{key} is {value!r}; known: {', '.join(known)}")
    return str(value)


def _whole(
    document: Mapping[str, Any], key: str, least: int, most: int, default: int | None = None
) -> int:
    value = _required(document, key) if default is None else document.get(key, default)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise InvalidWorkload(f"{key} is {value!r}; write a whole number from {least} to {most}")
    return int(value)
