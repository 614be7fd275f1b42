"""Processes of `amcast collectors run` that share a plan, as an operator runs them."""

from collectors.testing.processes import CollectorProcess
from tests.helpers.system import until


class SharedCollectors:
    """A context manager that ends the processes; they are numbered from 0."""

    def __init__(self, bootstrap, topic, folder, *options, processes):
        self._options = ["-b", bootstrap, "-t", topic, *options]
        self._folder = folder
        self.count = processes
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

    def start(self, number):
        """Start a process, and wait until it is healthy."""
        log = self._folder / f"shared-{number}.log"
        started = self._processes[number] = CollectorProcess(log, *self._options)

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
