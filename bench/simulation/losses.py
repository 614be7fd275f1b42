"""Losses: Kafka partitions lose what was acknowledged last, and give its offsets to other records.

what     a log; an order stream; some of both; a control topic; or all topics, to one moment
power    the collectors' processes end as well, so that those after them have seen nothing
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.simulation.collectors import SimulatedCollectors
from bench.simulation.judge import Gone, Judge
from bench.simulation.strangers import Strangers
from bench.simulation.world import COLLECTORS, CONTROL, World
from bench.simulation.writers import Producers
from multicast.control import SINGLE_LOG, ControlState, log_partition, stream_partition
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError
from topology.tree import Log

_BACK = (1, 1, 2, 3, 5, 8, 20, 60)  # records that are lost, at most


class TailLosses:
    """Makes the losses of a schedule."""

    def __init__(
        self,
        world: World,
        judge: Judge,
        collectors: SimulatedCollectors,
        producers: Producers,
        strangers: Strangers,
    ) -> None:
        self._world = world
        self._judge = judge
        self._strangers = strangers
        self._collectors = collectors
        self._producers = producers

    def turn(self, bits: int) -> None:
        """Lose ends of Kafka partitions; perhaps end the collectors' processes, too."""
        world = self._world
        state = world.view().state
        plan = state.plan(state.begun_epoch)
        logs = [log_partition(log) for log in plan.logs]
        streams = [stream_partition(plan, node.name) for node in plan.collectors]
        if bits & 1:
            world.fault("power cut")
            self._collectors.end_all()
        match bits >> 1 & 7:
            case 0 | 1 | 2:
                self._lose(logs, bits >> 4, 1)
            case 3 | 4:
                self._lose(streams, bits >> 4, 1)
            case 5:
                self._lose([*logs, *streams], bits >> 4, 3)
            case 6:
                world.fault("lost statements")
                self._lose((CONTROL, CONTROL, COLLECTORS), bits >> 4, 1)
                self._producers.begin_anew()
            case _:
                moment = world.now - (1 + (bits >> 4) % 1000)
                world.fault("restored")
                topics = [*logs, *streams, CONTROL, COLLECTORS]
                for partition, first in world.log.offsets_at(topics, moment).items():
                    self._cut(partition, first)
                self._producers.begin_anew()

    def _lose(self, partitions: Sequence[TopicPartition], bits: int, most: int) -> None:
        """Let some of these lose up to so many records."""
        for _ in range(most if partitions else 0):
            partition = partitions[(bits & 0xFF) % len(partitions)]
            end = self._world.next_offset(partition)
            self._cut(partition, max(0, end - _BACK[bits >> 8 & 7]))
            bits >>= 11

    def _cut(self, partition: TopicPartition, first: int) -> None:
        begin = self._world.log.log_start_offsets([partition])[partition]
        first = max(first, begin, 1 if partition == CONTROL else 0)  # not the first plan
        if first >= self._world.next_offset(partition):
            return
        state = self._world.view().state
        plan = state.plan(state.begun_epoch)
        log = next((log for log in plan.logs if log_partition(log) == partition), None)
        if log is None:
            self._judge.gone.clear()  # what was stated may be lost
        else:
            self._note(state, log, first)
        self._world.lose(partition, first)

    def _note(self, state: ControlState, log: Log, first: int) -> None:
        """Note below which ends of a log others may never be delivered."""
        plan, partition = state.plan(state.begun_epoch), log_partition(log)
        after = 1 + self._world.log.leader_ends([partition])[partition].leader_epoch
        top = plan.top(log.name)
        for node in plan.collectors if top is not None else ():
            if log.name not in node.bag:
                continue
            try:
                stream = self._strangers.read(state, plan.epoch, node.name)
            except AmcastError:
                continue
            seen = stream.state.seen.get(stream.plan.number(log.name), ())
            end = max((each.end for each in seen), default=0)
            for source in (node.name, *([SINGLE_LOG + log.name] if node == top else ())):
                epoch = state.first_epoch(plan.epoch, source)
                self._judge.gone.append(Gone(epoch, source, log.name, first, end, after))
