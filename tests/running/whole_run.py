"""What `make test` adds to pytest: one broker for all workers, and a word on what it does.

`pytest --whole-run -n 4`: the process that hands out the tests starts a broker, unless
AMCAST_BOOTSTRAP names one, and stops it at the end. Twice a minute it prints how far the run is and
which files are at work. A file is one unit of work. The files under `jvm` in `tests/parts.toml`,
which start JVMs of their own, are one unit together, in the order in which they stand there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from multicast.local.cluster import LocalCluster
from tests.running import sizes
from tests.running.parts import TABLE, TESTS

EVERY_S = 30.0
JVM, LONG, NOT_QUICK = ([TESTS / name for name in TABLE[key]] for key in ("jvm", "long", "slow"))


def starts_jvms(path: Path) -> bool:
    """Whether the tests of a file start JVMs beside the broker that all share."""
    return path in JVM


def hold_to_the_table() -> None:
    """In a worker of `make test`: a file that is not in the table starts no broker of its own."""
    start = LocalCluster.start

    def start_if_listed(cluster: LocalCluster) -> list[int]:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        file = test.partition("::")[0]
        assert starts_jvms(TESTS.parent / file), f"{file} starts a broker; see parts.toml"
        return start(cluster)

    LocalCluster.start = start_if_listed


class FilesAlone(LoadFileScheduling):
    """A file to a worker at a time; what starts JVMs goes to one worker, one file after another."""

    def __init__(self, config: pytest.Config, log) -> None:
        config.option.loadscopereorder = False  # the longest first, as in conftest.py
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "files that start JVMs" if starts_jvms(TESTS.parent / file) else file


class WholeRun:
    """The plugin, in the process that hands out the tests."""

    def __init__(self, config: pytest.Config, bootstrap: str | None) -> None:
        self._config = config
        self._cluster = None if bootstrap else LocalCluster(brokers=1)
        self._bootstrap = bootstrap
        self._began = self._reported_at = time.monotonic()
        self._running: dict[str, None] = {}
        self._ended = {"passed": 0, "failed": 0, "skipped": 0}

    def pytest_configure(self) -> None:
        if self._cluster is not None:
            self._cluster.start()
            self._bootstrap = self._cluster.bootstrap

    def pytest_unconfigure(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node) -> None:
        node.workerinput["bootstrap"] = self._bootstrap

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log) -> FilesAlone:
        return FilesAlone(config, log)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report) -> tuple[str, str, str] | None:
        """Print no dot for what passed: the lines below say how far the run is."""
        quiet = report.passed and not hasattr(report, "wasxfail")
        return ("passed" if report.when == "call" else "", "", "") if quiet else None

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" or not report.passed:
            self._ended[report.outcome] += 1
        if report.failed:
            self._say(f"FAILED {report.nodeid} ({report.when})")
        now = time.monotonic()
        if now - self._reported_at >= EVERY_S:
            self._reported_at = now
            counts = ", ".join(f"{count} {what}" for what, count in self._ended.items() if count)
            files = sorted(
                {nodeid.split("::")[0].removeprefix("tests/") for nodeid in self._running}
            )
            minutes, seconds = divmod(int(now - self._began), 60)
            self._say(f"{minutes}:{seconds:02}  {counts}; at work: {', '.join(files)}")

    def pytest_terminal_summary(self) -> None:
        self._say(sizes.line())

    def _say(self, line: str) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(line, flush=True)
