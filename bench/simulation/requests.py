"""The brokers that producers' requests reach: the driver in memory, with a fate for each request.

The product's own joint appender decides what a request holds, what is sent again, and what is in
doubt. Where messages and tickets have different leaders, they go by two requests.

    cut short   a producer that dies in the middle of a request: only its messages are stored, or
                only its tickets. It hears nothing of them
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from bench.simulation.trees import STREAMS, TOPIC
from bench.simulation.world import World
from multicast.control import order_topic
from multicast.drivers.appender.dispatcher import Limits
from multicast.drivers.memory.brokers import MemoryBrokers, MemoryRequest
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.protocol import TopicPartition

# Of producers, in seconds: what is later than a few of the longest delays becomes unknown.
_LIMITS = Limits(timeout_s=0.5, delivery_timeout_s=1.0)
_REFUSED = 87  # Kafka's INVALID_RECORD: the batch is certainly not stored, and not sent again


class CutShort(Enum):
    """What is stored of the request in which a producer dies."""

    MESSAGES = "messages without tickets"
    TICKETS = "tickets without messages"


class SimulatedBrokers:
    """Carries the requests of all producers; `bits` choose the fate of the next one."""

    def __init__(self, world: World) -> None:
        self.bits = 0
        self.cut: CutShort | None = None  # the producer dies with the next request
        self._world = world
        self._dead: set[int] = set()
        self._brokers = MemoryBrokers(world.log, carry=self._carry)
        self.driver = MemoryDriver(world.log, brokers=self._brokers, limits=_LIMITS)
        if world.schedule.apart:
            for stream in range(2 * STREAMS):
                self._brokers.leaders[TopicPartition(order_topic(TOPIC), stream)] = 1

    def turn(self) -> None:
        """Let the appenders look at the time."""
        self._brokers.turn()

    # -- inside -----------------------------------------------------------------------------

    def _carry(self, request: MemoryRequest) -> None:
        if request.producer in self._dead:
            return
        tickets = {part for part in request.batches if part.topic == order_topic(TOPIC)}
        messages = request.batches.keys() - tickets
        if self.cut is not None:
            self._dead.add(request.producer)
            lost = messages if self.cut is CutShort.TICKETS else tickets
            self._store(request, dict.fromkeys(lost, _REFUSED))
            return
        bits = self.bits if messages else self.bits >> 16
        self.bits = self.bits * 0x9E3779B1 + 1 & 0xFFFFFFFFFFFF
        refused = messages or tickets
        self._settle(request, bits, dict.fromkeys(refused, _REFUSED))

    def _settle(
        self, request: MemoryRequest, bits: int, refused: dict[TopicPartition, int]
    ) -> None:
        """Let a request meet its fate; `refused` has the answers if it is not stored."""
        world, parts = self._world, request.batches

        def store(codes: dict[TopicPartition, int] | None = None) -> Callable[[], None]:
            self._store(request, codes)
            return request.answer

        def again() -> None:
            # No network doubles a request whose first copy a broker has refused: who sent it
            # takes the answer for the outcome, and sends the records under other numbers.
            answers = request.answers.items()
            store({TopicPartition(*each): code for each, (code, _) in answers if code})

        def refuse() -> None:
            store(refused)()

        world.meet(
            world.fate(bits, *parts),
            world.delay(bits, *parts),
            store=store,
            lose=request.disconnect,
            refuse=refuse,
            again=again,
        )

    def _store(self, request: MemoryRequest, codes: dict[TopicPartition, int] | None) -> None:
        """Store, and tell the world what was stored."""
        world = self._world
        before = {partition: world.next_offset(partition) for partition in request.batches}
        request.store(codes)
        for partition, offset in before.items():
            for stored in range(offset, world.next_offset(partition)):
                world.stored(partition, stored, b"a record")
