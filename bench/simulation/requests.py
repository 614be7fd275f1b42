"""The brokers that producers' requests reach: the driver in memory, with a fate for each request.

The product's own joint appender decides what a request holds, what is sent again, and what is in
doubt. Where messages and tickets have different leaders, they go by two requests.

    cut short   a producer that dies in the middle of a request: only its messages are stored, or
                only its tickets. It hears nothing of them
"""

from __future__ import annotations

from enum import Enum

from bench.simulation.schedule import Fate
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
        """Let a request have its fate; `refused` has the answers if it is not stored."""
        world = self._world
        fate, delay = world.fate(bits), world.delay(bits)
        if fate is not Fate.STORED:
            world.fault(fate.name.lower())
        if fate in (Fate.STORED, Fate.HEARD_LATE, Fate.UNHEARD, Fate.DOUBLED):
            self._store(request)
        match fate:
            case Fate.STORED:
                request.answer()
            case Fate.HEARD_LATE:
                world.later(delay, request.answer)
            case Fate.LATE:
                world.later(delay, lambda: self._store(request, heard=True))
            case Fate.LOST | Fate.UNHEARD:
                world.later(delay, request.disconnect)
            case Fate.GHOST:
                world.later(delay, lambda: self._store(request))
                request.disconnect()
            case Fate.DOUBLED:
                # No network doubles a request whose first copy a broker has refused: who sent it
                # takes the answer for the outcome, and sends the records under other numbers.
                again = {
                    TopicPartition(*each): code
                    for each, (code, _) in request.answers.items()
                    if code
                }
                request.answer()
                world.later(delay, lambda: self._store(request, again))
            case Fate.REFUSED:
                self._store(request, refused, heard=True)

    def _store(
        self,
        request: MemoryRequest,
        codes: dict[TopicPartition, int] | None = None,
        *,
        heard: bool = False,
    ) -> None:
        """Store, and tell the world what was stored."""
        world = self._world
        before = {partition: world.next_offset(partition) for partition in request.batches}
        request.store(codes)
        for partition, offset in before.items():
            for stored in range(offset, world.next_offset(partition)):
                world.stored(partition, stored, b"a record")
        if heard:
            request.answer()
