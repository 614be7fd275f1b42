"""The small benchmarks: they count correctly, and print one document."""

import json

import pytest

from bench.harness.hosts import peak_mib
from bench.micro import skips


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.campaign
def test_skips_are_the_offsets_that_no_message_has(capsys):
    skips.main(["--messages", "401", "--rate", "1000", "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["command"].startswith("python -m bench.micro.skips --messages 401")
    # The last messages are one of each producer to each log. A busy machine may have made a skip.
    assert document["figures"]["messages"] == 401 + 4
    assert 0 <= document["figures"]["skips"] < 100


def test_the_peak_of_a_process_holds_what_it_had():
    before = peak_mib("self")
    held = bytearray(b"x") * (64 << 20)
    assert peak_mib("self") >= before
    assert peak_mib("self") > len(held) / 2**20
