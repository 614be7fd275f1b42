"""Changes of the tree under load: `topology apply` runs, is killed, and is repeated.

Two layouts for the same consumers take turns. `apply` runs as a process, as for an operator.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Iterator

from bench.nemesis.faults.kinds import kind
from bench.nemesis.faults.programs import busy_instance
from bench.nemesis.running import marked, until
from bench.nemesis.system import System
from multicast.errors import AmcastError, TimedOut
from topology.rollback import back
from topology.tree import Plan

_APPLY_S = 60.0  # the time-out given to `apply`: as long as a recovery may take by default
# `apply` waits several times, `_APPLY_S` each, after a start that took 40 s on a full machine.
_END_S = 300.0
_HOST = "c3"
# What `apply` says as it goes: before the plan is proposed, after that, while the drain goes on.
_STEPS = ("to roll back", "is in the control topic", "collectors freeze")


class Replanning:
    """One change of the tree: which plan, and the operator's process."""

    def __init__(self, system: System) -> None:
        self._system = system
        running = system.plans()[-1]
        # The epoch's number decides which layout follows.
        self.plan: Plan = back(system.layouts[running.epoch % 2], running)
        self._file = system.folder / f"plan-{self.plan.epoch}.json"
        self._file.write_text(json.dumps(self.plan.to_json()), encoding="utf-8")
        self._log = system.folder / f"apply-{self.plan.epoch}.log"

    def begin(self) -> subprocess.Popen[bytes]:
        """Start the operator's process."""
        flags = ["-b", self._system.bootstrap_at(_HOST), "--timeout", str(_APPLY_S)]
        argv = marked(self._system.token, "multicast", "topology", "apply", str(self._file), *flags)
        with self._log.open("ab") as out:
            return subprocess.Popen(self._system.command(_HOST, argv), stdout=out, stderr=out)

    def finish(self, operator: subprocess.Popen[bytes]) -> None:
        """Wait until the epoch has begun; raises if `apply` fails."""
        try:
            code = operator.wait(_END_S)
        except subprocess.TimeoutExpired:
            operator.kill()
            operator.wait(10)
            raise TimedOut(
                f"applying epoch {self.plan.epoch} did not end: {self._log_end()}"
            ) from None
        if code:
            raise AmcastError(
                f"applying epoch {self.plan.epoch} ended with exit code {code}: {self._log_end()}"
            )

    def reach(self, operator: subprocess.Popen[bytes], step: str) -> None:
        """Wait until the operator's process has printed a step, or has ended."""

        def done() -> bool:
            return step in self._log.read_text(errors="replace") or operator.poll() is not None

        until(done, timeout_s=_END_S, pause_s=0.002)

    def _log_end(self) -> str:
        return self._log.read_text(errors="replace").strip()[-500:]


@kind("replanned", hold_s=(0.5, 1.0))
def replanned(system: System, _: random.Random) -> Iterator[str]:
    """Change the tree under load."""
    change = Replanning(system)
    change.finish(change.begin())
    yield f"epoch {change.plan.epoch}"


@kind("replanned-collector-killed", hold_s=(0.5, 1.0))
def replanned_collector_killed(system: System, pick: random.Random) -> Iterator[str]:
    """Kill an instance that orders, at some step of a change of the tree."""
    change = Replanning(system)
    program = system.programs[busy_instance(system, pick)]
    operator = change.begin()
    change.reach(operator, pick.choice(_STEPS))
    program.kill()
    change.finish(operator)
    yield f"epoch {change.plan.epoch}, {program.name}"
    program.start()


@kind("replanned-apply-killed", hold_s=(0.0, 1.0))
def replanned_apply_killed(system: System, pick: random.Random) -> Iterator[str]:
    """SIGKILL the operator's process at some step; the same command then completes the change."""
    change = Replanning(system)
    operator = change.begin()
    change.reach(operator, pick.choice(_STEPS))
    operator.send_signal(signal.SIGKILL)
    operator.wait(10)
    yield f"epoch {change.plan.epoch}"
    change.finish(change.begin())
