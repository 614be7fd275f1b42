"""What all tests share: the order of their files, no deadlines, loggers that no test changes."""

import gc
import logging
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine, examples are drawn and run slowly; hypothesis would count that as a failure.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

OURS = ("amcast", "kafka", "faust", "mode")


def levels_of_ours():
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in OURS]
    return {name: logging.getLogger(name).level for name in names}


def pytest_collection_modifyitems(items):
    """Put the files that need brokers first: they take longest, and one worker would end alone.

    With AMCAST_CAMPAIGN=K/N only every N-th planted bug is hunted, from the K-th on, and of the
    files with other tests of the campaign only every N-th takes part.
    """
    first, share = (int(part) for part in os.environ.get("AMCAST_CAMPAIGN", "0/1").split("/"))
    planted = [item for item in items if "planted_bug_is_found" in item.name]
    planted += [item for item in items if "finds_a_planted_bug" in item.name]
    left_out = {item for number, item in enumerate(planted) if number % share != first}
    others = [item for item in items if item.get_closest_marker("campaign")]
    others = [item for item in others if item not in planted]
    files = sorted({item.path for item in others})
    kept = {file for number, file in enumerate(files) if number % share == first}
    left_out |= {item for item in others if item.path not in kept}
    items[:] = [item for item in items if item not in left_out]
    brokers = {item.path for item in items if item.get_closest_marker("kafka")}
    items.sort(key=lambda item: item.path not in brokers)


@pytest.fixture(autouse=True)
def loggers_as_they_were():
    """Restore the levels of our loggers and the handlers of the root.

    A command that runs in the test's own process sets them for the whole process: later tests of
    the same worker then wait for log lines that never come.
    """
    root = logging.getLogger()
    handlers, level, levels = list(root.handlers), root.level, levels_of_ours()
    yield
    for name in levels_of_ours():
        logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True, scope="module")
def sockets_of_spark_are_closed():
    """Collect the sockets that pyspark leaves open while a module that expects it still runs.

    Their destructors warn, and a warning would fail whichever later test of the worker meets it.
    """
    yield
    if "pyspark" in sys.modules:
        gc.collect()
