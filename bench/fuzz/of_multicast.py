"""Fuzz targets of `multicast` and `topology`: decoders of bytes from Kafka and files."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from crc32c import crc32c

from bench.fuzz.mutation import Shape
from bench.fuzz.target import FuzzTarget, require
from bench.pipeline.rule import PlannedOrder, Said, Statement, StreamRule, read_control
from bench.pipeline.ticket_rule import StreamReading
from collectors.doctor.streams import Control
from multicast import history, messages, settings
from multicast.cli import lines, verify
from multicast.conditional.condition import EXPECT, TAGS, Expectation, expect_header, marks
from multicast.conditional.judge import LogJudge, border
from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import Bounds, SubscriptionRequest, chain_back, resume
from multicast.control import (
    PROCESS_BYTES,
    ControlState,
    StatusPage,
    ends_record,
    genesis,
    markers_record,
    plan_record,
    running_record,
)
from multicast.control.codecs import named_record
from multicast.control.documents import Ended, SawEnd
from multicast.drivers.appender.record_batch import record_pieces, written_batch
from multicast.drivers.client_settings import CODECS
from multicast.drivers.kafka.appender.request import answered
from multicast.drivers.kafka.codecs import codec_of
from multicast.drivers.kafka.column_reader import columns_of
from multicast.drivers.kafka.fetch_request import EndsRequest, FetchPartition, frame_size
from multicast.drivers.kafka.group_member import _members, _part
from multicast.drivers.kafka.records import committed, decoded, decompress
from multicast.drivers.protocol import Record, TopicPartition
from multicast.errors import AmcastError, ProtocolViolation, UsageError
from multicast.history import HistoryBuilder, HistoryError
from multicast.order.records import (
    Correction,
    FreezeRecord,
    Loss,
    OwnRecord,
    Position,
    RelayRecord,
    SeenEnd,
    SightRecord,
    Ticket,
    Unread,
    decode,
    encode,
)
from multicast.order.rule import NotCounted
from multicast.order.runs import digest_of
from multicast.order.stream import OrderStream, StreamCheckpoint
from topology.check import PlanRejected, check
from topology.interests import InvalidInterests, from_document, parse
from topology.planner.solver import plan as solve
from topology.tree import InvalidPlan, Plan

_INTERESTS = """
topic = "A"
partitions = ["P1", "P2", "P3", "P4", "P5"]
destinations = [["P1", "P3"], ["P2", "P3"]]
[[consumer]]
name = "C1"
interest = ["P1", "P2", "P3"]
weight = 2.5
[[consumer]]
name = "C2"
interest = ["P5"]
[rates]
P1 = 100.0
[limits]
collector_rate_max = 1e6
"""
_PARTITION = TopicPartition("A", 0)
_BATCH_HEAD_BYTES = 61  # of Kafka's record batch, format 2
_NOW_MS = 1_600_000_000_000  # any time
_CHECKSUMMED_FROM = 21  # the byte after the checksum, from which it is computed


def _plan(epoch: int, *extra: str) -> Plan:
    consumers = [
        {"name": "C1", "interest": ["P1", "P2", "P3"]},
        {"name": "C2", "interest": ["P3", "P4"]},
        {"name": "L", "interest": ["P5"]},
    ]
    consumers += [{"name": f"C{name}", "interest": [name]} for name in extra]
    document = {
        "topic": "A",
        "partitions": ["P1", "P2", "P3", "P4", "P5"],
        "destinations": [["P1", "P3"], ["P3", "P4"]],
        "consumer": consumers,
    }
    return replace(solve(from_document(document)), epoch=epoch, base_epoch=epoch - 1)


_FIRST, _SECOND = _plan(1), _plan(2, "P1", "P5")


def _starts() -> dict[str, int]:
    return {log.name: 0 for log in _FIRST.logs}


# -- the control topic ----------------------------------------------------------------------


def _joined(key: bytes | None, value: bytes) -> bytes:
    return (key or b"") + b"\0" + value


def _stream(collector: str, statement: bytes) -> OrderStream:
    """Open a stream of the first plan, which this statement made."""
    return OrderStream(_FIRST, collector, _starts(), began=digest_of(statement))


def _statements() -> list[tuple[bytes, bytes]]:
    ends = {log.name: 7 for log in _FIRST.logs}
    first = plan_record(genesis("A"), _FIRST, attempt="1")
    second = plan_record(digest_of(first[1]), _SECOND, attempt="1")
    markers = markers_record(digest_of(second[1]), 1, ends, attempt="1")
    node = _FIRST.collectors[0]
    stream = _stream(node.name, first[1])
    point = StreamCheckpoint(1, node.name, 3, encode(stream.shape.tag, stream.checkpoint()))
    return [
        first,
        second,
        markers,
        ends_record(digest_of(markers[1]), 1, ends, attempt="1"),
        named_record(point, 1, (0, 0)),
        running_record(1, node.name),
        running_record(1, node.name, StatusPage("127.0.0.1", 6066, bytes(PROCESS_BYTES))),
        running_record(1, node.name, releases=1),
    ]


def _recovered() -> tuple[bytes, bytes]:
    """Make an `ends` record as a recovery writes it, with all optional fields."""
    node = _SECOND.collectors[0]
    ended = Ended(
        {node.name: dict.fromkeys(node.bag, 3)},
        {node.name: 2},
        {node.bag[0]: (SawEnd(9, 1, 7),)},
        {node.bag[0]: 8},
    )
    previous = digest_of(_GIVEN[2][1])
    ends = {log.name: 7 for log in _FIRST.logs}
    return ends_record(previous, 1, ends, attempt="2", ended=ended)


_GIVEN = _statements()
_STARTED = [Record(offset, value, key) for offset, (key, value) in enumerate(_GIVEN[:2])]


def _begun(statements: list[Record]) -> tuple[ControlState, Said]:
    state, reading = ControlState("A"), Said("A")
    for record in statements:
        _read(state, record)
        reading.take(Statement(record.key, record.value))
    return state, reading


def _read(state: ControlState, record: Record) -> None:
    """Read a record as if it were in both topics: in one of them it is void."""
    state.read(record)
    state.read_collectors(record)


_STATE, _READING = _begun(_STARTED)


def _read_statement(raw: bytes) -> None:
    """Read plans, the input, and the rest of a valid topic with both readers; use the state."""
    key, _, value = raw.partition(b"\0")
    state, reading = _STATE.copy(), copy(_READING)
    reading.plans, reading.markers, reading.ends = (
        list(reading.plans),
        dict(reading.markers),
        dict(reading.ends),
    )
    reading.kept, reading.ended = list(reading.kept), dict(reading.ended)
    reading._lives = dict(reading._lives)  # noqa: SLF001
    # The input comes also after the markers, because an epoch ends only after them.
    records = [Record(2, value, key), Record(2, _GIVEN[2][1], _GIVEN[2][0]), Record(2, value, key)]
    records += [Record(3 + index, value, key) for index, (key, value) in enumerate(_GIVEN[2:])]
    for record in records:
        _read(state, record)
        reading.take(Statement(record.key, record.value))
    plans = [plan.epoch for plan in state.plans]
    require(plans == [plan["epoch"] for plan in reading.plans], "the judge reads other plans")
    require(
        (state.markers, state.ends) == (reading.markers, reading.ends), "the judge reads other ends"
    )
    for epoch, ended in state.ended.items():
        seen = {log: [list(end) for end in ends] for log, ends in ended.seen.items()}
        ours = (ended.resumed, ended.restored, state.began[epoch + 1], seen, ended.lost)
        require(ours == tuple(reading.ended[epoch]), "the judge reads other recoveries")
    _look(state)


def _read_first_statement(raw: bytes) -> None:
    """Read the input as the first record of a topic, and again after a valid plan."""
    key, _, value = raw.partition(b"\0")
    control = Control(ControlState("A"))
    control.read_collectors(Record(0, value, key))
    control.read(Record(0, value, key))
    control.read(_STARTED[0])
    control.read(Record(9, value, key))
    control.read_collectors(Record(9, value, key))
    require(len(control.collectors_foreign) <= 2, "a record is foreign more than once")
    _look(control.state)


def _look(state: ControlState) -> None:
    if state.begun_epoch < state.epoch:
        return
    for entry in state.plan().consumers:
        request = SubscriptionRequest.of(entry.name, None)
        links, _ = chain_back(state, request, state.epoch)
        resume(state, request, links[-1].start, bounds=Bounds())
    for epoch in range(1, state.begun_epoch + 1):
        for node in state.plan(epoch).collectors:
            state.stream(epoch, node.name, below=2**62)


# -- order records --------------------------------------------------------------------------


_NODE = next(node for node in _FIRST.collectors if node.parent is not None)


def _orders() -> list[bytes]:
    """Make a record of each kind but a restored one; all count one after the other."""
    stream = _stream(_NODE.name, _GIVEN[0][1])
    own, inherited = min(stream.own), min(stream.inherited)
    records = (
        OwnRecord((Ticket(own, 1, 1), Ticket(own, 0, 1000)), (Correction(own, 1, 9),)),
        RelayRecord(0, 3, (Position(inherited, 1000),), 0, 7),
        SightRecord((SeenEnd(own, 5000, 1), SeenEnd(own, 6000, 2)), (Loss(inherited, 2000),)),
        stream.marked,
        FreezeRecord(3, (Position(own, 1000),)),
    )
    encoded = [encode(stream.shape.tag, record) for record in records]
    for offset, raw in enumerate(encoded):
        assert not isinstance(stream.read(offset, raw), NotCounted)
    return encoded


_ORDERS = _orders()
_PLANNED = PlannedOrder()
read_control("A", [Statement(*_GIVEN[0])], _PLANNED)
_RULES: dict[str, StreamRule] = {rule.collector: rule for rule in _PLANNED.rules}


def _read_order(raw: bytes) -> None:
    tag = _stream(_NODE.name, _GIVEN[0][1]).shape.tag
    record = decode(tag, raw)
    if not isinstance(record, Unread):
        require(encode(tag, record) == raw, "an order record has two encodings")


def _judge_order(raw: bytes) -> None:
    """Give the input to both readers of the rule, between valid records."""
    stream = _stream(_NODE.name, _GIVEN[0][1])
    reading = StreamReading(_RULES[_NODE.name])
    for offset, each in enumerate((raw, *(part for one in _ORDERS for part in (one, raw)))):
        counts = isinstance(reading.take(offset, each), list)
        mine = not isinstance(stream.read(offset, each), NotCounted)
        require(mine == counts, "the judge disagrees with the order stream")
        positions = dict(stream.state.positions)
        require(positions == reading.positions, "the judge has other positions")
        state = stream.state
        seen = {
            log: [(one.leader_epoch, one.end, one.checksum) for one in ends]
            for log, ends in state.seen.items()
        }
        require((seen, state.lost) == (reading.seen, reading.lost), "the judge sees other ends")


# -- messages, fetched batches, brokers' answers --------------------------------------------


def _read_headers(raw: bytes) -> None:
    headers = []
    for pair in raw.split(b"\n"):
        raw_name, _, value = pair.partition(b"=")
        name = messages.header_name(raw_name)
        headers.append(("\ufffd" if name is None else name, value or None))
    messages.special("P1+P3", headers)


def _read_condition(raw: bytes) -> None:
    """Read tags and a condition; what a condition says is written and read again as the same."""
    log = "P1+P3"
    tags, _, expect = raw.partition(b"\n")
    made = marks(log, [(TAGS, tags), (EXPECT, expect)])
    condition = made.condition
    if condition is None or not condition.items:
        return
    again = marks(log, [expect_header(Expectation(log, condition))])
    require(again.condition == condition, "a condition is read otherwise once it is written")
    judge = LogJudge(log, border(condition.next))
    offset = condition.next
    judge.judge(Record(offset, b"", None, [(TAGS, tags)]))
    first = judge.judge(Record(offset + 1, b"", None, [(EXPECT, expect)]))
    # The position is known, so the judge always decides.
    require(first is not None, "a condition on a known position stays undecided")


_HEADERS = (b"\x04\x06abc\x02x\x0camcast\x01", b"\0")


def _batch(headers: bytes, codec: str = "none") -> bytes:
    """Write a batch of one record, and give its record headers."""
    whole = bytearray(written_batch(record_pieces(0, 0, None, b"value"), _NOW_MS, _NOW_MS))
    body = b"\0\0\0\x06key\x0avalue" + headers
    body, used = bytes([2 * len(body)]) + body, codec_of(codec)
    whole[_CHECKSUMMED_FROM + 1] |= used.number if used else 0
    return bytes(whole[:_BATCH_HEAD_BYTES]) + (used.encode(body) if used else body)


def _summed(raw: bytes) -> bytes:
    """Correct the length and checksum of a batch, so that the decoder reads its content."""
    if len(raw) < _BATCH_HEAD_BYTES:
        return raw
    head = raw[:8] + (len(raw) - 12).to_bytes(4, "big") + raw[12:16] + b"\2"
    return head + crc32c(raw[_CHECKSUMMED_FROM:]).to_bytes(4, "big") + raw[_CHECKSUMMED_FROM:]


def _read_batches(raw: bytes) -> None:
    for bytes_fetched in (raw, _summed(raw)):
        answer = SimpleNamespace(records=bytes_fetched, aborted_transactions=None)
        for batch in committed(_PARTITION, answer):
            if batch.records is not None:
                _read_twice(batch.records)


def _read_twice(batch: Any) -> None:
    """Decode a batch record by record, and at once: both agree, or the second gives up."""
    columns, error = None, None
    try:
        decompress(_PARTITION, batch)
        columns = columns_of([batch])
        records = decoded(_PARTITION, batch)
    except ProtocolViolation as violation:
        error = violation
    if error is not None:
        require(columns is None, "columns are made of a batch that is malformed")
        raise error
    if columns is not None:  # which have no leader epochs
        records = [record._replace(leader_epoch=-1) for record in records]
        require(list(columns) == records, "columns differ from their records")


def _read_ends(raw: bytes) -> None:
    request = EndsRequest(
        "fuzz", [FetchPartition(_PARTITION, 0, 1), FetchPartition(TopicPartition("A", 1), 0, 1)]
    )
    request.written(wait_ms=1, bytes_min=1, bytes_max=1)
    frame_size(raw)
    request.answered(raw)


def _read_stored(raw: bytes) -> None:
    answered(raw, 1)


def _read_cursor(raw: bytes) -> None:
    cursor = Cursor.parse(raw.decode("utf-8", "replace"))
    state = ControlState("A")
    for record in _STARTED:
        _read(state, record)
    resume(state, SubscriptionRequest.of("C1", None), cursor, bounds=Bounds())


# -- files ----------------------------------------------------------------------------------


@contextmanager
def _file(raw: bytes, suffix: str) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(raw)
        file.flush()
        yield Path(file.name)


def _read_plan(raw: bytes) -> None:
    plan = Plan.parse(raw)
    made = replace(plan)  # as one that this program has made
    require(Plan.parse(plan.canonical()).digest == made.digest, "a plan has two digests")
    check(plan)


def _read_history(raw: bytes) -> None:
    builder = HistoryBuilder()
    history.read(raw.splitlines(keepends=True), builder, source="fuzz")
    builder.history()


def _read_zipped(raw: bytes) -> None:
    with _file(raw, ".jsonl.gz") as file:
        verify._read_file(file, HistoryBuilder())  # noqa: SLF001


def _read_settings(raw: bytes) -> None:
    with _file(raw, ".toml") as file:
        settings._read(file)  # noqa: SLF001


_HISTORY = b"""{"consumer":"C1","interest":["P1","P3"]}
{"producer":"p","message_id":"P1+P3:0","to":["P1","P3"],"outcome":"accepted"}
{"consumer":"C1","instance":"a","sequence":0,"message_id":"P1+P3:0","to":["P1","P3"]}
{"process":"K1","log":"P1","records":3}
{"consumer":"C1","instance":"a","end":true,"late":false}
"""
_SENT = json.dumps(
    {"to": ["P1", "P3"], "payload": "x", "key": "k", "headers": {"name": "value"}}
).encode()
_ENDS_ANSWER = (
    b"\0\0\0\x4a\0\0\0\1\0\0\0\0\0\0\0\1\0\1A\0\0\0\1"
    b"\0\0\0\0\0\0" + bytes(7) + b"\5" + bytes(7) + b"\5\0\0\0\1" + bytes(16) + b"\0\0\0\0"
)
_STORED_ANSWER = (
    b"\0\0\0\x31\0\0\0\1\0\0\0\1\0\1A\0\0\0\1\0\0\0\0\0\0" + bytes(8) + b"\xff" * 8 + bytes(12)
)
_TEXT, _BYTES = Shape.TEXT, Shape.BINARY


def targets() -> list[FuzzTarget]:
    """List the targets of these packages."""
    statements = [_joined(*statement) for statement in (*_GIVEN, _recovered())]
    headers = [
        b"amcast.epoch=P1+P3|2\namcast.to=P1+P3|P1",
        b"amcast.skip=P1+P3\nname=",
        b"na\0me=x\n\xff=y",
    ]
    conditions = [
        b"P1+P3|a,seat:1\nP1+P3|17|t:a;k:00ff,t:b",
        b"P1+P3|a\nP1+P3|0|*",
        b"\nP1+P3|9|h:" + b"0" * 32,
    ]
    source = _FIRST.consumers[0].collector
    cursors = [f"1/{source}/{number}/0/{number}".encode() for number in (0, 7)]
    zipped, written = [gzip.compress(_HISTORY)], [b'topic = "A"\n[client]\na = "b"']
    return [
        FuzzTarget("control statement", _read_statement, (AmcastError,), statements, _TEXT, 8),
        FuzzTarget(
            "control topic's first", _read_first_statement, (AmcastError,), statements, _TEXT, 8
        ),
        FuzzTarget("order record", _read_order, (), _ORDERS, _BYTES, 40),
        FuzzTarget("order stream", _judge_order, (), _ORDERS, _BYTES, 20),
        FuzzTarget("message headers", _read_headers, (), headers, _TEXT, 40),
        FuzzTarget("conditions", _read_condition, (), conditions, _TEXT, 40),
        FuzzTarget(
            "fetched batches",
            _read_batches,
            (AmcastError,),
            [_summed(_batch(headers, codec)) for headers in _HEADERS for codec in CODECS],
            _BYTES,
            40,
        ),
        FuzzTarget("answer on ends", _read_ends, (ProtocolViolation,), [_ENDS_ANSWER], _BYTES, 30),
        FuzzTarget(
            "answer to an append", _read_stored, (ProtocolViolation,), [_STORED_ANSWER], _BYTES
        ),
        FuzzTarget("group assignment", _members, (), [_part(b'["a", "b"]')], _BYTES),
        FuzzTarget("cursor", _read_cursor, (AmcastError,), cursors, _TEXT),
        FuzzTarget("plan", _read_plan, (InvalidPlan, PlanRejected), [_FIRST.canonical()], _TEXT, 8),
        FuzzTarget(
            "interest file", _read_interests, (InvalidInterests,), [_INTERESTS.encode()], _TEXT
        ),
        FuzzTarget("history", _read_history, (HistoryError,), [_HISTORY], _TEXT),
        FuzzTarget("zipped history", _read_zipped, (HistoryError,), zipped, _BYTES, 3),
        FuzzTarget("line to send", _read_line, (UsageError,), [_SENT], _TEXT),
        FuzzTarget("settings", _read_settings, (UsageError,), written, _TEXT, 3),
    ]


def _read_interests(raw: bytes) -> None:
    parse(raw.decode("utf-8", "replace"))


def _read_line(raw: bytes) -> None:
    lines.parse_line(raw, "fuzz:1")
