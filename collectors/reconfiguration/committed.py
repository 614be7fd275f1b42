"""What consumer groups have committed of logs that lost their ends: who had what is lost.

Of a log without a collector nobody states what it has lost. A commit names the last message that
was delivered of it; where another one, or none, is there now, the log has lost it. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from collectors.core.mending import Damage, Harm, loss
from collectors.doctor.consumer_groups import group_prefix
from multicast.consuming.cursor import Cursor
from multicast.consuming.last_read import LastRead, LastReads
from multicast.control import SINGLE_LOG, ControlState, control_partition, log_partition
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.drivers.reading import read_upto
from multicast.errors import AccessDenied, Truncated, UsageError

Groups = Callable[[], Iterable[str]]


def lost_alone(driver: Driver, state: ControlState, groups: Groups) -> tuple[Damage, ...]:
    """Give what logs without a collector have lost, as commits show; blocks while it looks."""
    plan = state.plan(state.begun_epoch)
    alone = {log.name for log in plan.logs if plan.top(log.name) is None}
    losses: dict[str, int] = {}
    for _, cursor in cursors_of(driver, state, groups) if alone else ():
        name = cursor.source.removeprefix(SINGLE_LOG)
        if name == cursor.source or name not in alone or not cursor.message:
            continue
        # In another life of the log its loss is accepted.
        log, then = plan.log(name), state.plans[cursor.epoch - 1 : cursor.epoch]
        if [log.life] == [each.log(name).life for each in then if each.has_log(name)]:
            last = LastRead(cursor.next - 1, cursor.message)
            first = _lost_from(driver, log_partition(log), last)
            losses[name] = min(first, losses.get(name, first))
            if first > last.offset or state.loss_of(plan.epoch, name) is not None:
                del losses[name]
    ends = driver.high_watermarks([log_partition(plan.log(name)) for name in losses])
    return tuple(
        loss(plan, name, first, end := ends[log_partition(plan.log(name))], end)
        for name, first in losses.items()
    )


def cursors_of(driver: Driver, state: ControlState, groups: Groups) -> Iterator[tuple[str, Cursor]]:
    """Give the groups' names, without what all of a topic have, and the cursors they committed."""
    partition = control_partition(state.topic)
    for group in groups():
        stored = driver.committed(group, [partition]).get(partition)
        try:
            if stored is not None:
                yield group.removeprefix(group_prefix(state.topic)), Cursor.parse(stored[1])
        except UsageError:  # whatever else somebody has committed there
            continue


def _lost_from(driver: Driver, partition: TopicPartition, last: LastRead) -> int:
    """Give where a log has lost its end, if that lies at or below a message that was read.

    Else an offset above. It is where the leader's records begin that wrote the present one there.
    """
    try:
        LastReads(driver).refuse_others({partition: last})
    except Truncated:
        (present,) = driver.leader_ends([partition]).values()
    else:
        return last.offset + 1
    for fetched in read_upto(driver, partition, last.offset, present.end):
        for record in fetched.records:
            if record.offset >= last.offset:
                before = record.leader_epoch - 1
                end = driver.epoch_ends({partition: before})[partition] if before >= 0 else -1
                return min(last.offset, end) if end >= 0 else last.offset
    return min(last.offset, present.end)


def behind(
    driver: Driver, state: ControlState, damages: Iterable[Damage], groups: Groups
) -> Iterator[str]:
    """Name the consumer groups whose commits lie behind what logs have lost, in sentences."""
    lost = {
        log_partition(state.plan().log(each.log)): each
        for each in damages
        if each.harm is Harm.LOST
    }
    try:
        for group in groups() if lost else ():
            for partition, (position, _) in driver.committed(group, list(lost)).items():
                if position > lost[partition].first:
                    name = group.removeprefix(group_prefix(state.topic))
                    yield (
                        f"consumer {name} has delivered log {lost[partition].log} up to "
                        f"{position}: what it had from {lost[partition].first} on does not stand"
                    )
    except AccessDenied as error:
        yield f"what consumers have committed cannot be seen: {error}"
