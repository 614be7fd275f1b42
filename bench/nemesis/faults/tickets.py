"""Of a message and its ticket only one is stored: its producer dies, or a broker refuses it.

They are two requests only where the message's log and its collector's stream have different
leaders. The kills strike producers that reach the brokers through the proxy.

    losing    the broker that gets no Produce of the producer any more
    keeping   the other one: it still stores what the producer sends
    bulk      hundreds to thousands of messages by one call (`multicast_all`)
    refused   for certain, as the log's topic takes no record of this size, or of this age. Their
              tickets are stored, in the same request or another one
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Literal

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from bench.nemesis.faults.kinds import CALM_S, kind
from bench.nemesis.frames import Action, Api, RequestFault
from bench.nemesis.programs import FILLING
from bench.nemesis.system import SETS, STEADY_SETS, System
from multicast.errors import AmcastError, TimedOut

_PRODUCER = "p2"
_BULK = "bulk"
_STORED_S = 60.0  # for a producer to start, and for the keeping broker to answer a request
# Requests that the keeping broker stores before the kill. The producer multicasts to its sets in
# turns, so some of them hold a message, or a ticket, whose other half went to the losing broker.
_STORED_MIN = len(SETS)
_BULKS = (300, 1000, 3000)  # messages
_TRIES = 5  # some seconds
# Batches of the load still pass, and the skips for what is in flight of a bulk, 2 MB.
_ACCEPTED_BYTES, _REFUSED_BYTES = 8000, 8100

Half = Literal["tickets", "messages"]


def _kill_between(system: System, name: str, *, lost: RequestFault, kept: RequestFault) -> None:
    """Break requests of a producer until another one was stored; then SIGKILL it."""
    cut, stored = system.proxy.arm(lost), system.proxy.arm(kept)
    try:
        if not (cut.fired.wait(_STORED_S) and stored.answered.wait(_STORED_S)):
            raise TimedOut(f"{name}: no request broken, or none stored, within {_STORED_S:g} s")
    finally:
        system.programs[name].end()
        system.proxy.disarm()


def _losing(log: int, stream: int, lost: Half) -> tuple[int, int]:
    """Return the losing broker and the keeping one, which are one if the leaders are."""
    return (stream, log) if lost == "tickets" else (log, stream)


def _killed(system: System, pick: random.Random, *, lost: Half) -> Iterator[str]:
    _, log, stream = pick.choice(system.leaders(SETS))
    losing, keeping = _losing(log, stream, lost)
    if losing != keeping:
        produce = partial(RequestFault, api=Api.PRODUCE, client_id=_PRODUCER)
        _kill_between(
            system,
            _PRODUCER,
            lost=produce(action=Action.CUT, nth=None, broker=losing),
            kept=produce(action=Action.DELAY, nth=_STORED_MIN, delay_s=0.0, broker=keeping),
        )
        yield f"{_PRODUCER}, its {lost} to b{losing} lost, what goes with them stored on b{keeping}"
    else:
        system.programs[_PRODUCER].kill()
        yield f"{_PRODUCER}, no ticket apart from its message"
    system.programs[_PRODUCER].start()


@kind("producer-killed-before-ticket", hold_s=(0.5, 2.0), all_run=True)
def producer_killed_before_ticket(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a producer with messages stored whose tickets are lost: collectors order them."""
    yield from _killed(system, pick, lost="tickets")


@kind("producer-killed-before-message", hold_s=(0.5, 2.0), all_run=True)
def producer_killed_before_message(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a producer with tickets stored whose messages are lost: they count too early."""
    yield from _killed(system, pick, lost="messages")


def _bulk_killed(system: System, pick: random.Random, *, lost: Half) -> Iterator[str]:
    """Kill a producer in a bulk whose one half was stored; its first, single message is whole."""
    to, log, stream = pick.choice(system.leaders([*SETS, *STEADY_SETS]))
    messages = pick.choice(_BULKS)
    losing, keeping = _losing(log, stream, lost)
    produce = partial(RequestFault, api=Api.PRODUCE, client_id=_BULK)
    bulk = partial(produce, contains=FILLING * 10)
    system.bulk(to, messages)
    if losing == keeping:  # one request, of which nothing is stored
        of_bulk = bulk(action=Action.CUT, broker=losing), produce(action=Action.DELAY, delay_s=0.0)
    elif lost == "tickets":
        lost_rule = produce(action=Action.CUT, nth=None, broker=losing)
        of_bulk = lost_rule, bulk(action=Action.DELAY, delay_s=0.0, broker=keeping)
    else:
        # The keeping broker's first request is the ticket of the single message.
        kept_rule = produce(action=Action.DELAY, nth=2, delay_s=0.0, broker=keeping)
        of_bulk = bulk(action=Action.CUT, nth=None, broker=losing), kept_rule
    _kill_between(system, _BULK, lost=of_bulk[0], kept=of_bulk[1])
    yield f"{messages} to {'+'.join(to)}, {lost} to b{losing} lost, others stored on b{keeping}"


@kind("bulk-killed-before-ticket", hold_s=(0.5, 1.0), all_run=True, calm_s=CALM_S)
def bulk_killed_before_ticket(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a producer in a bulk of messages that are stored, without their tickets."""
    yield from _bulk_killed(system, pick, lost="tickets")


@kind("bulk-killed-before-message", hold_s=(0.5, 1.0), all_run=True, calm_s=CALM_S)
def bulk_killed_before_message(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL a producer in a bulk of messages of which only the tickets are stored."""
    yield from _bulk_killed(system, pick, lost="messages")


def _refused(
    system: System,
    pick: random.Random,
    sets: Sequence[Sequence[str]],
    *,
    size: int = 100,
    **setting: int,
) -> Iterator[str]:
    to, log, stream = pick.choice(system.leaders(sets))
    messages = pick.choice(_BULKS)
    refused = 0
    with _topics_with(system, **setting):
        for _until_the_leader_knows_the_setting in range(_TRIES):
            bulk = system.bulk(to, messages, size=size)
            try:
                bulk.wait()
            finally:
                bulk.end()
            notes = system.folder / f"produce-{_BULK}.{bulk.starts - 1}.jsonl"
            refused = notes.read_text(encoding="utf-8").count('"outcome":"failed"')
            if refused:
                break
        else:
            raise AmcastError(f"no broker refused a message to {'+'.join(to)}")
    yield f"{refused} messages to {'+'.join(to)} on b{log}, their tickets on b{stream}"


@contextmanager
def _topics_with(system: System, **setting: int) -> Iterator[None]:
    """Give the topics of all logs, of single partitions and of sets, another setting."""
    topics = {log.topic for log in system.layouts[0].logs}
    with closing(KafkaAdminClient(bootstrap_servers=system.cluster.bootstrap)) as admin:

        def change(operation: str) -> None:
            changed = {name.replace("_", "."): (operation, to) for name, to in setting.items()}
            admin.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, topic, changed) for topic in topics]
            )

        change("SET")
        try:
            yield
        finally:
            change("DELETE")


_too_large = partial(_refused, size=_REFUSED_BYTES, max_message_bytes=_ACCEPTED_BYTES)


@kind("bulk-refused", hold_s=(0.5, 1.0), all_run=True, calm_s=CALM_S)
def bulk_refused(system: System, pick: random.Random) -> Iterator[str]:
    """Have brokers refuse a bulk of messages whose tickets they store."""
    yield from _too_large(system, pick, SETS)


@kind("bulk-refused-steady", hold_s=(0.5, 1.0), all_run=True, calm_s=CALM_S)
def bulk_refused_steady(system: System, pick: random.Random) -> Iterator[str]:
    """Refuse a bulk to a log that never rests."""
    yield from _too_large(system, pick, STEADY_SETS)


@kind("logs-refuse", hold_s=(0.5, 1.0), calm_s=CALM_S)
def logs_refuse(system: System, pick: random.Random) -> Iterator[str]:
    """Let all logs, but no stream, take no record of an earlier millisecond, during a bulk.

    Its messages, those of the load, and the skips that would fill their places are refused.
    """
    yield from _refused(system, pick, STEADY_SETS, message_timestamp_before_max_ms=0)
