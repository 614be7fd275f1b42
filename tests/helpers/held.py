"""A driver in memory whose appends a test stores, holds back or loses one by one."""

from bench.simulation.appends import FatedAppender
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.protocol import IN_FLIGHT_MAX


class SteppedDriver(MemoryDriver):
    """Its appenders call `step` with each append; nothing goes beside one, so no ticket either."""

    def __init__(self, log=None, *, step):
        super().__init__(log)
        self._step = step

    def appender(self, *, in_flight_max=IN_FLIGHT_MAX, **_):
        return FatedAppender(self.log, step=self._step, in_flight_max=in_flight_max)
