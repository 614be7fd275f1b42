"""A pytest plugin: fixtures with real Kafka clusters, which start when a test first uses one.

They are `LocalCluster`s in temporary directories and end with the test session, even if it is
killed. `AMCAST_BOOTSTRAP` may name an existing cluster for `kafka_cluster`; the cluster of three is
always a local one, because tests kill and freeze its brokers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:  # every pytest run loads this plugin, but few start a broker
    from multicast.local.cluster import LocalCluster


class TestedCluster(Protocol):
    """What a test may use of any cluster."""

    @property
    def bootstrap(self) -> str:
        """The addresses of its brokers: HOST:PORT, separated by commas."""


@dataclass(frozen=True, slots=True)
class ExistingCluster:
    """A cluster that the tests neither start nor stop."""

    bootstrap: str


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


@pytest.fixture(scope="session")
def kafka_cluster_of_three() -> Iterator[LocalCluster]:
    """Three brokers, replication 3, min.insync.replicas 2.

    A broker that a test killed or paused stays so; `start()` restarts missing ones.
    """
    from multicast.local.cluster import LocalCluster  # noqa: PLC0415

    with LocalCluster(brokers=3) as cluster:
        yield cluster
