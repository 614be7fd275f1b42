"""What a user asks of a table, as text options; named as Spark's Kafka source names them.

Where the meaning is the same the name is the same: `kafka.*`, `startingOffsets`,
`startingTimestamp`, `endingOffsets`, `endingTimestamp`, `maxOffsetsPerTrigger`,
`maxRecordsPerPartition`, `failOnDataLoss`, `kafkaConsumer.pollTimeoutMs`. docs/spark.md lists all
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SubscriptionRequest
from multicast.drivers.client_settings import check_client
from multicast.errors import UsageError
from multicast.order.runs import OFFSET_MAX
from multicast.tables.order_walk import Where

SERVERS = "kafka.bootstrap.servers"
NAMES = (
    "topic",
    "consumer",
    "interest",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger",)
# A task's worth, about half a second: enough that starting it in Spark, some 0.1 s, counts little,
# few enough for a retry to be cheap.
_SLICE_OFFSETS = 500_000
_TIMEOUT_MS = 30_000  # as `Consumer.until_end`: it outlives the failover of a broker


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What to read: the system, the subscription, from where, up to where, in which portions."""

    bootstrap: str
    topic: str
    request: SubscriptionRequest
    start: Where
    until: Cursor | datetime | None
    offsets_max: int  # of a micro-batch
    slice_offsets: int
    timeout_s: float
    client: dict[str, str]


def table_options(given: Mapping[str, str], *, stream: bool) -> TableOptions:
    """Read options, whose names have no case; raises `UsageError` for what is wrong."""
    known = {name.lower(): name for name in NAMES}
    values: dict[str, str] = {}
    client: dict[str, str] = {}
    bootstrap = ""
    for key, value in given.items():
        name = key.lower()
        if name == SERVERS:
            bootstrap = value
        elif name.startswith("kafka."):
            client[name.removeprefix("kafka.")] = value
        elif name in known:
            values[known[name]] = value
        else:
            raise UsageError(f"option {key!r} is unknown; known are kafka.* and {', '.join(NAMES)}")
    if not bootstrap:
        raise UsageError(f'option {SERVERS} is missing; give "host:port,host:port"')
    for name in _BATCH_ONLY if stream else _STREAM_ONLY:
        if name in values:
            kind = "a batch" if name in _BATCH_ONLY else "a stream"
            raise UsageError(f"option {name} is for {kind} only")
    if values.get("failOnDataLoss", "true").lower() != "true":
        raise UsageError(
            "failOnDataLoss is true only: an order with silent gaps would be another order; start "
            "at a later cursor instead"
        )
    check_client(client)
    return TableOptions(
        bootstrap=bootstrap,
        topic=values.get("topic", "A"),
        request=SubscriptionRequest.of(values.get("consumer"), _interest(values)),
        start=_start(values, stream=stream),
        until=_until(values),
        offsets_max=_whole(values, "maxOffsetsPerTrigger", OFFSET_MAX),
        slice_offsets=_whole(values, "maxRecordsPerPartition", _SLICE_OFFSETS),
        timeout_s=_whole(values, "kafkaConsumer.pollTimeoutMs", _TIMEOUT_MS) / 1000,
        client=client,
    )


def _interest(values: Mapping[str, str]) -> list[str] | None:
    text = values.get("interest")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if "" in names:
        raise UsageError(f"interest is {text!r}; give names of partitions, as in P1,P3")
    return names


def _start(values: Mapping[str, str], *, stream: bool) -> Where:
    moment = _moment(values, "starting")
    if moment is not None:
        return moment
    text = values.get("startingOffsets", "latest" if stream else "earliest")
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    return _cursor("startingOffsets", text, "earliest, latest or a cursor")


def _until(values: Mapping[str, str]) -> Cursor | datetime | None:
    moment = _moment(values, "ending")
    if moment is not None:
        return moment
    text = values.get("endingOffsets", "latest")
    return None if text == "latest" else _cursor("endingOffsets", text, "latest or a cursor")


def _moment(values: Mapping[str, str], end: str) -> datetime | None:
    """Read the time option of one end; None if it is not given."""
    name = f"{end}Timestamp"
    if name not in values:
        return None
    if f"{end}Offsets" in values:
        raise UsageError(f"give {end}Offsets or {name}, not both")
    moment = _whole(values, name, 0, least=0)
    try:
        return datetime.fromtimestamp(moment / 1000, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{name} {moment} is no time in ms since 1970") from error


def _cursor(name: str, text: str, allowed: str) -> Cursor:
    try:
        return Cursor.parse(text)
    except UsageError as error:
        raise UsageError(f"{name} is {text!r}; give {allowed} (as a row's cursor)") from error


def _whole(values: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    text = values.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and least <= int(text[:20]) <= OFFSET_MAX):
        raise UsageError(f"{name} is {text!r}; give a whole number from {least}")
    return int(text)
