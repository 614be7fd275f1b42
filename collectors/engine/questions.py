"""Asks the leaders of logs what they have, for the collectors of a process (`core/sights.py`).

All instances are asked for together: one request to each leader, and another one where something
is to be compared. It blocks, so it happens among the chores, and never on a message's way.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from collectors.core.sights import EpochEnd, Question
from collectors.engine.assignment import Assignment
from multicast.control import ControlState, loss_record, lost_stream_record
from multicast.drivers.protocol import Driver, LeaderEnd, TopicPartition
from multicast.errors import ClusterUnreachable
from topology.tree import Plan

_T = TypeVar("_T")
# A leader that does not answer holds up the other chores for so long. Ten times less, brokers that
# are busy would leave nothing stated.
_ANSWER_S = 1.0
# After an answer that took a time t, so many t pass before the next question: a leader that is away
# costs the other chores a tenth of their time.
_PAUSES = 10


class Asking(Protocol):
    """What asks: an instance whose core works, or none of whose answers matter any more."""

    @property
    def assignment(self) -> Assignment:
        """The collector that it runs."""

    def question(self, logs: Collection[int] | None = None) -> Question | None:
        """Give the question for these own logs, by default for those that have moved."""

    def epochs(self, question: Question, ends: Mapping[int, LeaderEnd]) -> Mapping[int, int]:
        """Give by log the leader epoch whose end to ask for."""

    def answered(
        self, question: Question, ends: Mapping[int, LeaderEnd], epoch_ends: Mapping[int, EpochEnd]
    ) -> None:
        """Take the answers."""

    def is_judged(self, log: int) -> bool:
        """Whether holes of a log may be filled, as of the last answer."""

    @property
    def wants_starts(self) -> bool:
        """Whether to ask where the streams begin that it reads."""

    def streams_begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Take where the streams begin that it reads."""


class Questions:
    """Asks for several instances, once a second at most; where streams begin, as they want it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._due_s = 0.0

    def ask(self, instances: Sequence[Asking]) -> bool:
        """Ask for the logs of these that have moved; False, and nothing happens, if too soon."""
        began = time.monotonic()
        if began < self._due_s:
            return False
        ask_leaders(self._driver, instances)
        ask_starts(self._driver, [each for each in instances if each.wants_starts])
        now = time.monotonic()
        self._due_s = now + _PAUSES * (now - began)
        return True


def ask_leaders(
    driver: Driver, instances: Iterable[Asking], *, logs: Collection[int] | None = None
) -> bool:
    """Ask for these logs of each instance, by default for those that have moved, and tell them.

    Returns whether all leaders have answered; logs of the others are left out. Raises what
    `Driver.leader_ends` raises but `ClusterUnreachable`.
    """
    places = [
        (each, question, _partitions(each, question))
        for each in instances
        if (question := each.question(logs)) is not None
    ]
    wanted = {log: None for _, _, by_number in places for log in by_number.values()}
    if not wanted:
        return True
    ends: Mapping[TopicPartition, LeaderEnd] = {}
    epochs: dict[TopicPartition, int] = {}
    answers: dict[TopicPartition, EpochEnd] = {}
    with suppress(ClusterUnreachable):
        ends = driver.leader_ends(list(wanted), timeout_s=_ANSWER_S)
        for each, question, by_number in places:
            for number, epoch in each.epochs(question, _by_number(by_number, ends)).items():
                epochs.setdefault(by_number[number], epoch)
        if epochs:
            epoch_ends = driver.epoch_ends(epochs, timeout_s=_ANSWER_S)
            answers = {log: EpochEnd(epochs[log], end) for log, end in epoch_ends.items()}
    for each, question, by_number in places:
        each.answered(question, _by_number(by_number, ends), _by_number(by_number, answers))
    return len(ends) == len(wanted)


def ask_starts(driver: Driver, instances: Sequence[Asking]) -> None:
    """Ask where the streams begin that these instances read, and tell them.

    If a leader does not answer nothing is told. Raises what `Driver.log_start_offsets` raises but
    `ClusterUnreachable`.
    """
    streams = {stream: None for each in instances for stream in each.assignment.streams}
    with suppress(ClusterUnreachable):
        starts = driver.log_start_offsets(list(streams), timeout_s=_ANSWER_S) if streams else {}
        for each in instances:
            each.streams_begin(starts)


def is_whole(driver: Driver, instance: Asking, log: int) -> bool:
    """Ask the leader of a log; say whether it answers, and has all that was seen of the log."""
    return ask_leaders(driver, [instance], logs=[log]) and instance.is_judged(log)


def _partitions(instance: Asking, question: Question) -> dict[int, TopicPartition]:
    """Give the Kafka partitions to ask for by number."""
    logs = instance.assignment.logs
    return {number: log for log, number in logs.items() if number in question.seen}


def _by_number(
    partitions: Mapping[int, TopicPartition], answers: Mapping[TopicPartition, _T]
) -> dict[int, _T]:
    return {number: answers[log] for number, log in partitions.items() if log in answers}


def unstated_stream(
    assignment: Assignment, stream: TopicPartition | None, state: ControlState
) -> list[tuple[bytes, bytes]]:
    """Make the statement that the control topic lacks: a stream has lost its end.

    Of any other Kafka partition than those of the streams that a collector reads there is none.
    """
    name = assignment.name if stream == assignment.own else assignment.parent_name
    if name is None or stream not in assignment.streams:
        return []
    epoch = assignment.plan.epoch
    stated = (name, epoch) in state.losses.streams
    return [] if stated else [lost_stream_record(name, epoch)]


def unstated_losses(
    plan: Plan, lost: Mapping[int, int], state: ControlState
) -> list[tuple[bytes, bytes]]:
    """Make the statements that the control topic lacks of what logs of a plan have lost."""
    records = []
    for number, first in sorted(lost.items()):
        log = plan.logs[number]
        stated = state.losses.first_of(log.name, log.life)
        if stated is None or first < stated:
            records.append(loss_record(log.name, log.life, first))
    return records
