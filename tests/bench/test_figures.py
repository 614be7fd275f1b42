"""The small benchmarks: they count correctly, and print one document."""

import json

import pytest

from bench.micro import ordering, skips
from bench.micro.memory import _peak_mib


def test_ordering_alone_orders_everything_and_counts_each_run(capsys):
    ordering.main(["--logs", "4", "--ticks", "5", "--grown", "2500", "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["schema_version"], document["benchmark"]) == (1, "ordering")
    assert (
        document["command"]
        == "python -m bench.micro.ordering --logs 4 --ticks 5 --grown 2500 -o json"
    )
    measured = document["figures"]
    # Runs are capped at 1000 messages: three of each log a tick, a record for each round of logs.
    messages, runs, records = 4 * 5 * 2500, 4 * 5 * 3, 5 * 3
    per_run = measured["messages_per_cpu_second"] / measured["runs_per_cpu_second"]
    assert round(per_run) == round(messages / runs)
    assert (
        round(measured["runs_per_cpu_second"] / measured["records_per_cpu_second"])
        == runs / records
    )
    assert document["machine"]["cpus"]


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
    before = _peak_mib("self")
    held = bytearray(b"x") * (64 << 20)
    assert _peak_mib("self") >= before
    assert _peak_mib("self") > len(held) / 2**20
