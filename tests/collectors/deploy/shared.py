"""A collector's instances without threads, and processes that share a plan, as in operation."""

from bench.harness.processes import CollectorProcess
from collectors.core.actions import Append
from collectors.core.collector import Collector
from collectors.core.standby import Standby
from tests.helpers.plans import chain, first_stream
from tests.helpers.system import until


def core_of_k1(writer):
    """Make the core of an instance that has read nothing; its clock stands still."""
    plan = chain()
    stream = first_stream(plan, "K1")
    return Collector(stream, None, writer=writer, clock=lambda: 0)


class Instances:
    """A primary and standbys of K1 on one stream; time is what a test says."""

    def __init__(self, count, patience_s):
        self.records = []
        self.cores = [self._core(writer) for writer in range(1, count + 1)]
        self.roles = [Standby(primary=each == 0, patience_s=patience_s) for each in range(count)]
        self._read = [0] * count
        for role, core in zip(self.roles, self.cores, strict=True):
            role.begin(core)

    def _core(self, writer):
        core = core_of_k1(writer)
        core.own_end(0)
        return core

    def offer(self):
        """Let the primary hand over; all standbys read that."""
        self.roles[0].primary = False
        for role in self.roles[1:]:
            role.offer(1)

    def ends(self, end):
        for core in self.cores:
            core.log_end(0, end)

    def turn(self, which, now=0.0):
        """Read all records, and append what is due; give how many records were appended."""
        core = self.cores[which]
        for offset in range(self._read[which], len(self.records)):
            core.own_read(offset, self.records[offset])
        self._read[which] = len(self.records)
        actions = core.step() if self.roles[which].decide(core, now) else ()
        raws = [action.raw for action in actions if isinstance(action, Append)]
        self.records += raws
        return len(raws)

    @property
    def acting(self):
        return [role.acting for role in self.roles]


class SharedCollectors:
    """A context manager that ends the processes; they are numbered from 0.

    `python` has the interpreter's options, of which the last ones name what runs as `amcast`.
    """

    def __init__(self, bootstrap, topic, folder, *options, processes, python=("-m", "multicast")):
        self._options = ["-b", bootstrap, "-t", topic, *options]
        self._folder = folder
        self.count = processes
        self._python = python
        self._processes = {}

    def __enter__(self):
        try:
            for number in range(self.count):
                self.start(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.close()

    def start(self, number, python=None):
        """Start a process, of another version if `python` says so; wait until it is healthy."""
        log = self._folder / f"shared-{number}.log"
        started = self._processes[number] = CollectorProcess(
            log, *self._options, python=python or self._python
        )

        def healthy():
            assert not started.ended(), started.log_end()
            try:
                return bool(started.page("/healthz"))
            except OSError:  # an answer of 503 is one, too
                return False

        until(healthy, f"health of process {number}")

    def stop(self, number):
        """Send SIGTERM to a process, and wait until it has ended."""
        self._processes[number].terminate()
        until(self._processes[number].ended, f"the end of process {number}")

    def kill(self, number):
        """End a process as a crash would."""
        self._processes[number].kill()

    def page(self, number):
        """Give "http://host:port" of a process; empty until it has said so."""
        return self._processes[number].address()
