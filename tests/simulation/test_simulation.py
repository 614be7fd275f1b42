"""The simulator: no schedule breaks a guarantee, one seed is one trace, a failure is shrunk."""

import os
import re
import subprocess
import sys

import pytest

from bench.simulation.judge import Violation
from bench.simulation.schedule import MULTICASTS, TurnKind, draw
from bench.simulation.shrink import Shrinker, tell
from bench.simulator import campaign, main, run
from tests.running.parts import sample

MANY = 300  # in so many schedules each of these faults occurs; `make simulate` runs more
KINDS = (
    "lost", "late", "ghost", "unheard", "doubled", "refused", "heard_late", "collector crashed",
    "consumer crashed", "operator killed", "transaction", "foreign record", "trimmed",
    "compaction", "hole filled", "standby took over", "surplus ticket", "false checkpoint",
    "producer died: messages without tickets", "producer died: tickets without messages",
    "collector away", "wrong record: freeze", "damage: frozen", "recovery",
    "poisoned checkpoint", "collector stopped: ProtocolViolation", "consumer stopped: Trimmed",
    "consumer stopped: Truncated", "collector stopped: Truncated", "lost tail",
    "lost statements", "restored", "power cut", "loss stated", "partition away",
    "collector released", "collector relieved", "follower opened",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("schedules", sample([40, MANY], of=1))
def test_no_schedule_breaks_a_guarantee(schedules):
    totals = campaign(100_000, schedules, processes=2)
    assert totals.failures == []
    assert totals.schedules == schedules
    assert totals.stats.multicasts == MULTICASTS * schedules
    assert totals.stats.deliveries > totals.stats.multicasts
    missing = [kind for kind in KINDS if not totals.stats.faults[kind]]
    assert missing == [] or schedules < MANY


def test_the_processes_of_a_campaign_inherit_nothing_of_the_one_that_starts_them(monkeypatch):
    # A forked one would wait for the threads that gRPC had in this one, for ever.
    monkeypatch.setattr("bench.simulator.ROUNDS_MAX", 0)
    assert campaign(100_000, 2, processes=2).failures == []
    assert campaign(100_000, 2, processes=1).failures != []


@pytest.mark.slow
def test_one_seed_gives_one_trace_under_two_hash_seeds():
    digests = [digest_under(hash_seed, schedules=5) for hash_seed in ("1", "2")]
    assert digests[0] == digests[1]


def digest_under(hash_seed: str, *, schedules: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bench.simulator", "--schedules", str(schedules)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    match = re.search(r"digest of all traces (\w+)", done.stdout)
    assert match is not None
    return match[1]


@pytest.mark.slow
def test_a_failure_is_shrunk_to_the_turns_that_it_needs():
    schedule = next(drawn for drawn in map(draw, range(50)) if len(drawn.plans) == 3)

    def run_badly(candidate):
        # Stands in for a bug that needs two turns: a multicast, and after it an operator's.
        kinds = [op.kind for op in candidate.ops]
        if (
            TurnKind.MULTICAST in kinds
            and TurnKind.OPERATOR in kinds[kinds.index(TurnKind.MULTICAST) :]
        ):
            return Violation("validity", f"{len(kinds)} turns")
        return None

    shrinker = Shrinker(schedule, Violation("validity", "many"), run=run_badly)
    shrinker.shrink()
    assert [op.kind for op in shrinker.best.ops] == [TurnKind.MULTICAST, TurnKind.OPERATOR]
    assert shrinker.violation.witness == "2 turns"
    lines = tell(shrinker.best, run(shrinker.best).trace)
    assert any(line.startswith("turns: multicast:") for line in lines)


def test_the_command_prints_counts_and_ends_with_0(capsys):
    assert main(["--schedules", "2", "--first-seed", "7"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"schedules 2 {2}multicasts 128 {2}deliveries .* violations 0", printed)


def test_the_command_prints_every_event_of_one_seed_when_asked(capsys):
    assert main(["--seed", "7", "--trace"]) == 0
    assert re.search(r"^\d+ delivers C\d \w+ P", capsys.readouterr().out, re.MULTILINE)
