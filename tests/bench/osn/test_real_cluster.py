"""Bundles at three real nodes that are killed.

The large run, by hand: `amcast bench bundles --bundles 100000`.
"""

import pytest
from rich.console import Console

from bench.osn.campaign import campaign, campaign_size
from bench.osn.faults import BROKER, CLIENT, COLLECTOR, CONFIG, NODE, DueFault
from bench.osn.run import Load

BUNDLES = 400
FAULTS = [
    DueFault(0.2, NODE, 0),
    DueFault(0.3, CONFIG, 0),
    DueFault(0.4, COLLECTOR, 0),
    DueFault(0.5, CLIENT),
    DueFault(0.6, CONFIG, 1),
    DueFault(0.7, BROKER),
    DueFault(0.9, NODE, 1),
]


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_bundles_are_in_all_of_their_chains_or_in_none_though_everything_is_killed():
    size = campaign_size(4, 6, nodes=3, brokers=1, seed=3)
    load = Load(BUNDLES, 60.0, 3, faults=FAULTS, timeout_s=400.0)
    figures, arm = campaign(size, load, Console(quiet=True))
    assert arm.violations == []
    assert figures["torn"] == 0
    assert figures["transfers_begun"] == BUNDLES
    assert figures["node_kills"] == 2
    assert figures["config_blocks"] == figures["configs"] == 2
    assert figures["transfers_in_blocks"] + figures["void"] >= figures["transfers_acknowledged"]
    for chain, handled in figures["records_handled_by_chain"].items():
        assert 0 < handled <= figures["records_that_concern_the_chain"][chain]
