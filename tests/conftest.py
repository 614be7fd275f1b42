"""What all tests share: their environment, the order of their files, the brokers, no deadlines."""

import asyncio
import gc
import inspect
import logging
import os
import sys
import time

import pytest
from hypothesis import HealthCheck, settings

from multicast.local.cluster import LocalCluster
from multicast.local.pytest_plugin import ExistingCluster
from tests.running import parts
from tests.running.needs import missing
from tests.running.planted import copied_source
from tests.running.whole_run import JVM, LONG, NOT_QUICK, WholeRun, hold_to_the_table

# Neither a busy machine, on which examples are drawn and run slowly, nor a draw of several large
# examples in a row is a failure.
# It writes nothing into the checkout, which may be read-only; a failure prints how to repeat it.
settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    database=None,
    print_blob=True,
)
settings.load_profile("busy")

OURS = ("amcast", "kafka", "faust", "mode")
# What a user's shell may hold, and what would reach the commands that tests run.
NOT_OURS = ("PYTEST_ADDOPTS", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHONWARNINGS",
            "CLICOLOR", "CLICOLOR_FORCE", "LANGUAGE", "LC_ALL", "PYTHONIOENCODING")  # fmt: skip
BROKERS = {"kafka_cluster", "kafka_cluster_of_three"}  # who asks for one is marked `kafka`
BOOTSTRAP = pytest.StashKey()  # of the broker that all tests share, or None
OF_THREE = pytest.StashKey()  # the cluster of three brokers while it runs
USERS_OF_THREE = pytest.StashKey()  # the files whose tests ask for it


def pytest_addoption(parser):
    parser.addoption(
        "--whole-run",
        action="store_true",
        help="with -n: one broker for all workers, and a line on what is at work twice a minute",
    )


def pytest_configure(config):
    """Give every test the same environment, whoever runs them, and one broker if that is wanted."""
    found = {name: os.environ.pop(name) for name in list(os.environ)
             if name in NOT_OURS or name.startswith("AMCAST_")}  # fmt: skip
    kept = ("AMCAST_CAMPAIGN", "AMCAST_TURN", "AMCAST_REQUIRE_ALL")
    os.environ.update({name: found[name] for name in kept if name in found})
    os.environ |= {"LANG": "C.UTF-8", "TZ": "UTC"}
    time.tzset()
    bootstrap = found.get("AMCAST_BOOTSTRAP")
    if hasattr(config, "workerinput"):
        bootstrap = config.workerinput.get("bootstrap")
        if bootstrap and "not campaign" in config.option.markexpr:
            hold_to_the_table()
    elif config.getoption("--whole-run"):
        config.pluginmanager.register(WholeRun(config, bootstrap))
    config.stash[BOOTSTRAP] = bootstrap


def pytest_ignore_collect(collection_path, config):
    return parts.is_left_out(collection_path, config.option.markexpr) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for garbage once, at the end: nearly all that is made meanwhile stays."""
    gc.disable()
    collected = yield
    gc.enable()
    gc.collect()
    return collected


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Put what takes longest first, or one worker would end alone: JVMs, long ones, brokers."""
    parts.mark(items)
    for item in items:
        if BROKERS.intersection(item.fixturenames):
            item.add_marker(pytest.mark.kafka)
        if item.path in NOT_QUICK:
            item.add_marker(pytest.mark.slow)
    # With --last-failed not all are here, so places tell no turn; these were this turn's.
    others = [] if config.getoption("lf", False) else parts.out_of_turn(items)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    config.stash[USERS_OF_THREE] = {
        item.path for item in items if "kafka_cluster_of_three" in item.fixturenames
    }
    brokers = {item.path for item in items if item.get_closest_marker("kafka")}
    place = {path: number for number, path in enumerate((*JVM, *LONG))}
    items.sort(key=lambda item: (place.get(item.path, len(place)), item.path not in brokers))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip a test that needs what is not here.

    Before a file that does not use the three brokers these stop, so that few JVMs run at a time.
    """
    for what in (what for mark in item.iter_markers("needs") for what in mark.args):
        if (why := missing(what)) is not None:
            raise pytest.skip.Exception(why, _use_item_location=True)
    cluster = item.config.stash.get(OF_THREE, None)
    if cluster is not None and item.path not in item.config.stash[USERS_OF_THREE]:
        item.config.stash[OF_THREE] = None
        cluster.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    return _required(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    report = yield
    return _required(report)


def _required(report):
    """With AMCAST_REQUIRE_ALL=1 a test that is skipped has failed."""
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if is_skip and os.environ.get("AMCAST_REQUIRE_ALL") == "1":
        report.outcome = "failed"
        report.longrepr = f"AMCAST_REQUIRE_ALL=1, and it was skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def kafka_cluster(request):
    """One broker: that of the whole run, the one that AMCAST_BOOTSTRAP names, or one of our own."""
    bootstrap = request.config.stash[BOOTSTRAP]
    if bootstrap:
        yield ExistingCluster(bootstrap)
        return
    with LocalCluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_cluster_of_three(request):
    """Three brokers, which a test may kill or pause: `start()` restarts missing ones."""
    with LocalCluster(brokers=3) as cluster:
        request.config.stash[OF_THREE] = cluster
        yield cluster


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the source, in which one bug at a time is planted."""
    return copied_source(tmp_path_factory.mktemp("source"))


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


def levels_of_ours():
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in OURS]
    return {name: logging.getLogger(name).level for name in names}


@pytest.fixture(autouse=True, scope="module")
def sockets_of_spark_are_closed():
    """Collect the sockets that pyspark leaves open while a module that expects it still runs.

    Their destructors warn, and a warning would fail whichever later test of the worker meets it.
    """
    yield
    if "pyspark" in sys.modules:
        gc.collect()
