"""Isolated faults of topics, disks and clocks: each has the promised effect."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.nemesis.faults.isolated import ISOLATED_FAULTS
from bench.nemesis.isolated.deployment import FaultSite

kafka = pytest.mark.kafka
slow = pytest.mark.slow
patient = pytest.mark.timeout(900)
FULL_BROKER = """
import dataclasses, json, pathlib, tempfile
from bench.nemesis.faults.isolated import ISOLATED_FAULTS
from bench.nemesis.isolated.deployment import FaultSite
from multicast.local.cluster import LocalCluster
with tempfile.TemporaryDirectory() as folder, LocalCluster(brokers=3) as cluster:
    site = FaultSite(cluster.bootstrap, pathlib.Path(folder), cluster)
    print(json.dumps(dataclasses.asdict(ISOLATED_FAULTS["full-broker"](site))))
"""


@pytest.fixture
def site(kafka_cluster, tmp_path):
    return FaultSite(kafka_cluster.bootstrap, tmp_path)


@kafka
@slow
@patient
@pytest.mark.parametrize("name", sorted(set(ISOLATED_FAULTS) - {"full-broker"}))
def test_a_fault_beside_the_main_load_has_the_effect_that_is_promised(site, name):
    effect = ISOLATED_FAULTS[name](site)
    assert effect.name == name
    assert effect.messages >= 300
    assert effect.deliveries > effect.messages


@kafka
@slow
@patient
def test_a_broker_whose_disk_is_full_ends_and_comes_back_and_nothing_is_lost():
    # Mounts in the namespace disappear with its last process, however that ends.
    command = ["unshare", "--mount", "--", sys.executable, "-c", FULL_BROKER]
    if os.geteuid() != 0:  # nobody else may mount
        done = subprocess.run(command[3:], capture_output=True, text=True, timeout=800, check=False)
        assert "cannot mount a small disk for a broker" in done.stderr
        return
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    effect = json.loads(done.stdout)
    assert effect["deliveries"] > effect["messages"] > 1600
    assert "amcast-" not in Path("/proc/self/mounts").read_text()
