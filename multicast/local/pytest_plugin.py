"""A pytest plugin: real Kafka clusters as fixtures, started when a test first asks for one.

They are `LocalCluster`s in temporary directories and end with the test session, even where that is
killed. `AMCAST_BOOTSTRAP` names an existing cluster to use for `kafka_cluster` instead; the one of
three is always our own, because tests kill and freeze its brokers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:  # every pytest run loads this file; few start a broker
    from multicast.local.cluster import LocalCluster


class TestedCluster(Protocol):
    """What a test may count on of any cluster."""

    @property
    def bootstrap(self) -> str:
        """The addresses of its brokers, HOST:PORT by commas."""


@dataclass(frozen=True, slots=True)
class ExistingCluster:
    """A cluster that somebody else started and will stop."""

    bootstrap: str


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[TestedCluster]:
    """One broker, or the cluster that AMCAST_BOOTSTRAP names. Tests share it: use own topics."""
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

    A test that killed or paused a broker leaves it so; `start()` brings back what is missing.
    """
    from multicast.local.cluster import LocalCluster  # noqa: PLC0415

    with LocalCluster(brokers=3) as cluster:
        yield cluster
