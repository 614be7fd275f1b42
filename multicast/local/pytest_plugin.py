"""A pytest plugin: systems for a test, in memory or on a real broker, and real Kafka clusters.

    amcast_system             systems in memory; each ends, and is checked, with the test
    amcast_topic              topics on `kafka_cluster` with a plan and collectors; likewise
    kafka_cluster             one broker

A test that used the first two fails on any violation of the order. docs/testing-your-code.md shows
both. `AMCAST_SEED` sets the seed of systems in memory for which the test gives none.

A cluster starts when a test first uses it, as a `LocalCluster` in a temporary directory, and ends
with the test session, even if that is killed. `AMCAST_BOOTSTRAP` may name an existing cluster for
`kafka_cluster`; the cluster of three is always a local one, because tests kill and freeze its
brokers.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pytest

if TYPE_CHECKING:  # every pytest run loads this plugin, but few start a broker
    from multicast.local.cluster import LocalCluster
    from multicast.testing.clients import TopicClients
    from multicast.testing.interests import Interests
    from multicast.testing.memory_system import MemorySystem
    from multicast.testing.parties import TopicOnBroker


@dataclass(frozen=True, slots=True)
class ExistingCluster:
    """A cluster that the tests neither start nor stop."""

    bootstrap: str


TestedCluster: TypeAlias = "LocalCluster | ExistingCluster"


class _Opened:
    """What a fixture has opened for one test."""

    def __init__(self) -> None:
        self._opened: list[TopicClients] = []

    def check(self) -> None:
        """Raise `OrderViolation` if a guarantee is violated in one that is still open."""
        for opened in self._opened:
            if not opened.closed:
                opened.check()

    def close(self) -> None:
        """Close all of them."""
        with ExitStack() as stack:
            for opened in self._opened:
                stack.callback(opened.close)


class OpenSystems(_Opened):
    """The fixture `amcast_system`: a call opens a system in memory, which ends with the test."""

    def __call__(self, interests: Interests, *, seed: int | None = None) -> MemorySystem:
        """Open a system as `multicast.testing.system` does; see there for interests and seed."""
        from multicast.testing.memory_system import system  # noqa: PLC0415

        opened = system(interests, seed=_default_seed() if seed is None else seed)
        self._opened.append(opened)
        return opened


class OpenTopics(_Opened):
    """The fixture `amcast_topic`: a call opens a topic with a plan and its running collectors."""

    def __init__(self, cluster: TestedCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def __call__(self, interests: Interests, *, driver: str = "librdkafka") -> TopicOnBroker:
        """Open a topic with a name of its own; blocks until its collectors work.

        `interests` are as for `multicast.testing.system`; `driver` names the driver of collectors
        and clients. Everything ends with the test, and the topics are deleted.
        """
        from multicast.testing.parties import load  # noqa: PLC0415

        opened: TopicOnBroker = load("topic")(self._cluster.bootstrap, interests, driver=driver)
        self._opened.append(opened)
        return opened


def _default_seed() -> int:
    text = os.environ.get("AMCAST_SEED", "0")
    if not text.isdecimal():
        raise pytest.UsageError(f"AMCAST_SEED is {text!r}; it has to be a whole number from 0")
    return int(text)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Check what a test opened once its own assertions hold, so a violation fails the test."""
    result = yield
    for opened in list(pyfuncitem.funcargs.values()):
        if isinstance(opened, _Opened):
            opened.check()
    return result


@pytest.fixture
def amcast_system() -> Iterator[OpenSystems]:
    """Open systems in memory; a test that passed is failed by any violation of the order."""
    with closing(OpenSystems()) as systems:
        yield systems


@pytest.fixture
def amcast_topic(kafka_cluster: TestedCluster) -> Iterator[OpenTopics]:
    """Open topics on a real broker; a test that passed is failed by any violation of the order."""
    with closing(OpenTopics(kafka_cluster)) as topics:
        yield topics


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[TestedCluster]:
    """One broker, or the cluster that AMCAST_BOOTSTRAP names. Tests share it: use new topics."""
    bootstrap = os.environ.get("AMCAST_BOOTSTRAP")
    if bootstrap:
        yield ExistingCluster(bootstrap)
        return
    from multicast.local.cluster import LocalCluster  # noqa: PLC0415

    with LocalCluster(brokers=1) as cluster:
        yield cluster
