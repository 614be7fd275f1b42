"""`amcast topology recover`: repairs the damage of a wrong order record, or of a lost end.

`survey.py` reads all streams of a topic; `mending.py` decides what is damaged. A log that is
ordered too far is filled. For any other damage it ends the epoch, and the next one begins with the
same layout:

    1  append the plan of the next epoch (`recovery_plan`) to the control topic
    2  append markers as in any change; collectors that can freeze do
    3  append a freeze for each collector that does not freeze in time
    4  fill the logs up to where the streams have ordered them, but for those that have lost
       their ends: `ends` says of these where the loss begins
    5  where streams of the epoch contradict each other, append the difference to the streams of
       the next epoch, which has not begun, under the tag that they will have; `ends` states where
       each of them begins, and how many runs it is owed (`restoring.py`)

Each step first reads what is in the logs, so a killed recovery is run again, and several at once
do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from collectors.core.collector import LIMITS
from collectors.core.epoch_change import losses_of
from collectors.core.mending import (
    Damage,
    Harm,
    StreamRead,
    ordered_to,
    recovery_plan,
    resumed,
    same_trees,
)
from collectors.engine.skips import fill_up, ignore, missing
from collectors.reconfiguration.appends import append_one
from collectors.reconfiguration.apply import propose
from collectors.reconfiguration.committed import Groups, behind, lost_alone
from collectors.reconfiguration.drain import Drain, Streams, with_stream_starts
from collectors.reconfiguration.lost_order import lost_order, state_lost_orders
from collectors.reconfiguration.restoring import freeze_bytes, refuse_gaps, restore, runs_to_restore
from collectors.reconfiguration.survey import damage_of, read_streams
from multicast.control import (
    ControlReader,
    ControlState,
    collectors_partition,
    loss_record,
    order_topic,
    stream_partition,
)
from multicast.control.documents import Ended
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import Driver
from multicast.errors import Conflict
from multicast.order.runs import Run, digest_of
from multicast.order.stream import OrderStream
from topology.carry_over import retained
from topology.tree import Plan

# Skips that are written without --yes. Each is a record that consumers read; more than early runs
# could ever leave means a defect, of which an operator should know.
SKIPS_MAX = 100_000
_AGAIN_S = 0.3  # after a freeze was appended, until one is appended again: an append takes less


# -- ending a damaged epoch -----------------------------------------------------------------


class RecoveringDrain(Drain):
    """A drain that can end an epoch in every state of its streams."""

    lossy = False
    _owed: Mapping[str, Sequence[Run]]  # by collector, with the log numbers of the next plan

    def _help(self, names: list[str], streams: Streams, opened: ExitStack) -> float:  # noqa: ARG002
        """Append a freeze for each collector that did not freeze in time."""
        for name in names:
            self._say(f"{name} did not freeze in time; this command freezes it")
            stream = streams.named[name]
            partition = stream_partition(stream.plan, name)
            self.appender.append(partition, freeze_bytes(stream), done=ignore)
        self._flush()
        return _AGAIN_S

    def _settle(self, streams: Streams, ends: Mapping[str, int], cuts: Collection[str]) -> Ended:
        """Find how the next epoch's streams make up for the contradictions of this epoch's."""
        ended, begins = streams.named, resumed(streams.named, ends, cuts)
        self._owed = {}
        if not same_trees(self._plan, self._next):
            torn = [f"collector {name} has strayed" for name in begins]
            torn += self._frozen_early(ends, cuts)
            if torn and not self.lossy:
                raise _other_layout(torn[0], self._next)
            return Ended()
        state = self._control.state
        runs = runs_to_restore(self._driver, state, ended, self.gone, lossy=self.lossy)
        cut = {self._next.number(log) for log in cuts}
        owed = {
            name: [run for run in self._renumbered(ended[name].plan, left) if run.log not in cut]
            for name, left in runs.items()
        }
        self._owed = {name: left for name, left in owed.items() if left}
        return Ended(
            begins, {name: len(left) for name, left in self._owed.items()}, runs=_digest(self._owed)
        )

    def _restore(self, ends: Mapping[str, int], ended: Ended, *, began: bytes) -> None:
        """Append what the next streams are owed; `began` is the digest of the `ends` to come."""
        starts = {**(self._control.state.starts(self._plan.epoch) or {}), **ends}
        for name, runs in self._owed.items():
            stream = OrderStream(
                self._next,
                name,
                starts,
                began=began,
                resumed=ended.resumed.get(name),
                owed=len(runs),
            )
            restore(self._driver, self.appender, stream, runs, deadline=self._deadline)

    def _renumbered(self, plan: Plan, runs: Sequence[Run]) -> list[Run]:
        """Give runs of a stream with the log numbers of the next plan; `plan` is the stream's."""
        names = [log.name for log in plan.logs]
        return [run._replace(log=self._next.number(names[run.log])) for run in runs]


def _digest(owed: Mapping[str, Sequence[Run]]) -> bytes:
    """Name what streams are owed: a recovery that restores other runs has other tags."""
    each = [f"{name} {runs}" for name, runs in sorted(owed.items())]
    return digest_of("\n".join(each).encode())


def _other_layout(torn: str, following: Plan) -> Conflict:
    return Conflict(
        f"{torn}, and epoch {following.epoch}, which was applied meanwhile, has another layout, so "
        f"some consumers would miss messages or get them twice; if that is acceptable, give "
        f"--accept-loss"
    )


# -- the command ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result: `epoch` is the newest one now, `skips` the number of empty messages appended."""

    epoch: int
    damages: tuple[Damage, ...]
    skips: int
    changed: bool


def recover(
    driver: Driver,
    admin: Admin,
    topic: str,
    *,
    timeout_s: float = 30.0,
    yes: bool = False,
    lossy: bool = False,
    groups: Groups = tuple,
    say: Callable[[str], None] = lambda _: None,
) -> Recovered:
    """Repair the damage in the newest epoch; return once that is done.

    More than `SKIPS_MAX` skips are written only with `yes`. If a log has lost its end, a plan with
    another layout was applied meanwhile, or retention has deleted in which order messages have to
    be restored, the damaged epoch is ended, with a loss, only with `lossy`. Raises `Conflict` if
    one of these is missing, before the first change, or if another operator was quicker, and
    `TimedOut` after about `timeout_s` seconds: run it again. `say` is called with a sentence for
    each step, each damage, and each of the consumer `groups` that has delivered what is lost.
    """
    deadline = time.monotonic() + timeout_s
    with closing(ControlReader(driver, topic)) as control:
        state = control.refresh()
        begun, is_planned = state.begun_epoch, state.begun_epoch < state.epoch
        streams = state_lost_orders(driver, state, read_streams(driver, state), timeout_s)
        damages = (*damage_of(driver, state, streams), *lost_alone(driver, state, groups))
        if lossy:
            damages = (*damages, *lost_order(driver, state, streams))
        for sentence in (*(each.says for each in damages), *behind(driver, state, damages, groups)):
            say(sentence)
        harms = [each for each in damages if each.harm is not Harm.TOO_FAR]
        if harms and not lossy:
            _refuse_loss(driver, state, streams, harms)
        skips = _fill(driver, state, streams, deadline=deadline, yes=yes, say=say)
        if not is_planned and not harms:
            return Recovered(begun, damages, skips, changed=skips > 0)
        gone = {name: read.gone for name, read in streams.items() if read.gone is not None}
        _forget(driver, state, gone, timeout_s)
        _state_losses(driver, state, harms, timeout_s)
        if not is_planned:
            _propose(driver, admin, control, harms, timeout_s)
            say(f"the plan of epoch {control.state.epoch} is in the control topic")
        with ExitStack() as opened:
            steps = RecoveringDrain(driver, control, begun, deadline=deadline, say=say)
            steps.lossy, steps.gone = lossy, gone
            opened.callback(steps.appender.close)
            steps.run(opened)
        control.refresh()
    if is_planned and _lost(harms):  # which the plan that came meanwhile did not accept
        left_s = max(0.0, deadline - time.monotonic())
        again = recover(driver, admin, topic, timeout_s=left_s, yes=yes, lossy=lossy, say=say)
        return replace(again, damages=damages, skips=skips + again.skips)
    return Recovered(control.state.epoch, damages, skips, changed=True)


def _lost(harms: Iterable[Damage]) -> tuple[str, ...]:
    """Name the logs that have lost their ends."""
    return tuple(each.log for each in harms if each.harm is Harm.LOST)


def _forget(driver: Driver, state: ControlState, gone: Mapping[str, int], timeout_s: float) -> None:
    """Delete from the control topic what it names of streams that have lost it: readers stop at it.

    Of collectors that are in the newest epoch that has begun.
    """
    for key, point in state.checkpoint_keys.items():
        began = state.first_epoch(state.begun_epoch, point.collector)
        if point.epoch == began and point.offset >= gone.get(point.collector, point.offset + 1):
            append_one(driver, collectors_partition(state.topic), key, None, timeout_s)


def _state_losses(
    driver: Driver, state: ControlState, harms: Iterable[Damage], timeout_s: float
) -> None:
    """State what logs have lost, where no collector has: whoever ends the epoch ends them there."""
    for each in [each for each in harms if each.harm is Harm.LOST]:
        stated = state.loss_of(state.begun_epoch, each.log)
        if stated is None or stated > each.first:
            life = state.plan(state.begun_epoch).log(each.log).life
            key, value = loss_record(each.log, life, each.first)
            append_one(driver, collectors_partition(state.topic), key, value, timeout_s)


def _next_plan(plan: Plan, harms: Iterable[Damage]) -> Plan:
    harmed = [each.collector for each in harms if each.harm is not Harm.LOST]
    return recovery_plan(plan, harmed, _lost(harms))


def _refuse_loss(
    driver: Driver, state: ControlState, streams: Mapping[str, StreamRead], harms: Sequence[Damage]
) -> None:
    """Raise `Conflict` if the end of the damaged epoch takes --accept-loss, as far as one sees."""
    losses = [each for each in harms if each.harm in (Harm.LOST, Harm.CUT)]
    if losses:
        raise Conflict(
            f"{losses[0].says}; if no broker can bring it back, give --accept-loss: what is there "
            f"now goes on in the next epoch"
        )
    plan = state.plan(state.begun_epoch)
    is_planned = plan.epoch < state.epoch
    following = state.plan(plan.epoch + 1) if is_planned else _next_plan(plan, harms)
    if not same_trees(plan, following):
        raise _other_layout(harms[0].says, following)
    kept = retained(plan, following).collectors
    left = {name: read for name, read in streams.items() if name not in kept}
    gone = {name: read.gone for name, read in left.items() if read.gone is not None}
    refuse_gaps(driver, state, {name: read.stream for name, read in left.items()}, gone)


def _propose(
    driver: Driver, admin: Admin, control: ControlReader, harms: Sequence[Damage], timeout_s: float
) -> None:
    """Append the plan of the next epoch to the control topic."""
    plan = _next_plan(control.state.plan(), harms)
    partition_count = 1 + max((node.stream for node in plan.collectors), default=0)
    admin.create_topics({order_topic(plan.topic): TopicSpec(partition_count)})
    propose(driver, control, with_stream_starts(driver, plan), timeout_s)


def _fill(
    driver: Driver,
    state: ControlState,
    streams: Mapping[str, StreamRead],
    *,
    deadline: float,
    yes: bool,
    say: Callable[[str], None],
) -> int:
    """Fill logs that are ordered further beyond their ends than collectors fill; count the skips.

    Raises `Conflict` if that takes more than `SKIPS_MAX` skips, unless `yes`.
    """
    plan = state.plan(state.begun_epoch)
    ended = [read.stream for read in streams.values()]
    losses = losses_of(state, plan.epoch, ended)
    targets = {name: to for name, to in ordered_to(ended).items() if name not in losses}
    short = missing(driver, plan, targets)
    short = {name: count for name, count in short.items() if count > LIMITS.fill_max}
    targets = {name: targets[name] for name in short}
    needed = sum(short.values())
    if needed > SKIPS_MAX and not yes:
        raise Conflict(
            f"log {max(short, key=short.__getitem__)} is ordered {max(short.values())} offsets "
            f"beyond its end, and {needed} empty messages have to be appended; give --yes to do so"
        )
    if not needed:
        return 0
    with closing(driver.appender()) as appender:
        return fill_up(driver, appender, plan, targets, deadline=deadline, say=say)
