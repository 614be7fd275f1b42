"""An operator's command that a power cut interrupts; the operator runs it again afterwards."""

from contextlib import suppress

from collectors.core.mending import recovery_plan
from collectors.reconfiguration.apply import apply, unapplied
from collectors.reconfiguration.recovery import recover
from multicast.drivers.kafka import Admin
from multicast.errors import AmcastError, Conflict
from tests.helpers.forged import forge, freeze
from tests.helpers.system import PATIENCE_S

ENDED = "has ended"
# What each of the two commands says once it has written the next plan, the markers, the ends.
STEPS = ("is in the control topic", "its collectors freeze", ENDED)


class CutOff(Exception):
    """The command's process has ended here."""


class Operator:
    """Changes the plan of a system, or recovers it: K1's tree gets other streams in either case."""

    def __init__(self, system, *, recovers, step):
        self._system, self._recovers, self._step = system, recovers, step
        self._following = recovery_plan(unapplied(system.plan), ["K1"])

    @property
    def ends_it(self):
        """Whether the next epoch has begun when the command is cut off."""
        return self._step == ENDED

    def spoil(self, write):
        """End K2's stream, so that K1 orders what K2 lacks, and what has to be restored to it."""
        if self._recovers:
            forge(self._system, "K2", freeze)
            write(3)

    def begin(self):
        """Run the command until it is cut off."""

        def say(sentence):
            if self._step in sentence:
                raise CutOff

        with suppress(CutOff):
            self._run(self._recovers, say)
            raise AssertionError(f"nobody said: {self._step}")

    def again(self):
        """Run the command again, and the other one where it refuses; give how that has ended."""
        end = ""
        for recovers in (self._recovers, True):
            try:
                self._run(recovers, lambda _: None)
            except AmcastError as error:
                end = type(error).__name__
                if isinstance(error, Conflict):
                    continue
                return end
            return "done"
        return end

    def _run(self, recovers, say):
        system = self._system
        with Admin(system.bootstrap) as admin:
            if recovers:
                place = system.driver, admin, system.topic
                recover(*place, say=say, timeout_s=PATIENCE_S)
            else:
                apply(system.driver, admin, self._following, say=say, timeout_s=PATIENCE_S)
