"""The speed of bundles, beside that of transactions of one chain; and of these, before and now.

    python -m bench.orderer.speed [latency] [throughput] [before --against PATH]

    latency     from the intended time of sending until a reader has the blocks with all parts:
                bundles over two chains, and transactions of one chain to the same two chains
    throughput  parts/s until all nodes have written all: bundles over 2, 4 and 8 chains, and
                transactions of one chain to the same chains
    before      both, for transactions of one chain: nodes of the source at PATH, in the environment
                that `make .venv/ready` made there, and nodes of this one

Everything is started for it: a broker, collectors, three nodes, a client process for each round.
The two arms take turns, in rounds; a ratio is the median of the rounds' ratios. A chain gets the
same number of parts in each arm, and the same number of parts is unanswered at once. The first
round of each arm warms up and is not counted. At the end all ledgers must hold all parts, in the
same blocks at all nodes.

`--profile ARM FILE` runs one arm alone, its nodes under a profiler (`bench.orderer.profile`), for
one round. Exit codes: 0 done, also where a mark is missed; 1 failed, 2 wrong arguments, 4
something did not happen in time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer

from bench.harness import facts, figures
from bench.harness.figures import progress
from bench.orderer.measure import Figures, verify
from bench.orderer.nodes import NODES, OrdererDeployment, Service, deployed, interpreter
from bench.orderer.profile import merged
from bench.orderer.rounds import (
    PacedRounds,
    SpeedArm,
    Spread,
    in_turns,
    ratios,
    saturated_round,
    spread,
)
from multicast.errors import AmcastError, UsageError

LATENCY, THROUGHPUT, BEFORE = "latency", "throughput", "before"
SINGLE, BUNDLE = "single", "bundle"
NOW, THEN = "now", "before"
_WARM_UPS = 1  # rounds of each arm: connections, code and caches
_SATURATED_TIMEOUT, _SATURATED_MESSAGES = "250ms", 500  # as `osn broadcast`
_ALONE, _IN_A_SET = 1, 2  # chains in `before`: without collectors, and ordered by one


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One comparison: the figures of both arms over the rounds, and the ratio to the base arm."""

    measurement: str
    setting: str
    figure: str
    base: str
    arm: str
    base_figure: Spread
    arm_figure: Spread
    ratio: Spread
    mark: float | None
    """The ratio asked for: at most (latency), or at least (throughput); None: none is."""
    at_most: bool
    costs: Mapping[str, Figures]
    """By arm: the median CPU time of each kind of process, in µs for each part."""

    @property
    def met(self) -> bool | None:
        """Whether the median ratio is on the right side of the mark; None without a mark."""
        if self.mark is None:
            return None
        return self.ratio.median <= self.mark if self.at_most else self.ratio.median >= self.mark


Rounds = Mapping[str, Sequence[Figures]]
"""By arm: the figures of each round."""


def row(
    measurement: str,
    setting: str,
    figure: str,
    rounds: Rounds,
    *,
    mark: float | None,
    at_most: bool,
) -> SpeedRow:
    """Compare the two arms of `rounds`, the base first, by one of their figures."""
    (base, base_rounds), (arm, arm_rounds) = rounds.items()
    below = [of_round[figure] for of_round in base_rounds]
    above = [of_round[figure] for of_round in arm_rounds]
    return SpeedRow(
        measurement,
        setting,
        figure,
        base,
        arm,
        spread(below),
        spread(above),
        ratios(above, below),
        mark,
        at_most,
        {name: _costs(of_arm) for name, of_arm in rounds.items()},
    )


def _costs(rounds: Sequence[Figures]) -> Figures:
    names = [name for name in rounds[0] if name.startswith("cpu_us_")]
    return {name: round(spread(of[name] for of in rounds).median, 1) for name in names}


# -- running ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpeedSize:
    """How much to measure."""

    rounds: int
    seconds: float
    """Of a paced round."""
    parts: int
    """Of a saturated round."""
    streams: int
    window: int
    nodes: int = NODES
    profile: tuple[str, Path] | None = None

    def arms(self, *arms: SpeedArm) -> list[SpeedArm]:
        """Return the arms to run."""
        return [arm for arm in arms if self.profile is None or arm.name == self.profile[0]]

    @property
    def warm_ups(self) -> int:
        """How many rounds of each arm are not counted."""
        return 0 if self.profile else _WARM_UPS


def service(size: SpeedSize, chains: int, *, messages_max: int, timeout: str) -> Service:
    """Return the service with that many chains and, where these are several, a set of all."""
    return Service(
        chains=[f"chain-{chr(ord('a') + number)}" for number in range(chains)],
        collectors=chains > 1,
        nodes=size.nodes,
        messages_max=messages_max,
        timeout=timeout,
        profile="cpu" if size.profile else None,
    )


@contextmanager
def both_arms(service: Service) -> Iterator[list[SpeedArm]]:
    """Deploy a service: single transactions and bundles go to the same nodes."""
    with deployed(service) as deployment:
        deployment.nodes.start_all()
        yield [SpeedArm(SINGLE, deployment), SpeedArm(BUNDLE, deployment, bundles=True)]


@contextmanager
def both_sources(service: Service, source: Path) -> Iterator[list[SpeedArm]]:
    """Deploy a service twice on one broker, with nodes of another source and of this one."""
    with ExitStack() as stack:
        now = stack.enter_context(deployed(service))
        then = stack.enter_context(deployed(replace(service, source=source), now.bootstrap))
        then = replace(then, pids={**then.pids, "broker": now.pids["broker"]})
        for deployment in (then, now):
            deployment.nodes.start_all()
        yield [SpeedArm(THEN, then), SpeedArm(NOW, now)]


def saturated(arms: Sequence[SpeedArm], size: SpeedSize) -> Rounds:
    """Run the saturated rounds; returns the figures of those that count."""
    rounds: dict[str, list[Figures]] = {arm.name: [] for arm in arms}
    for number, arm in in_turns(arms, size.warm_ups + size.rounds):
        result = saturated_round(arm, number, size.parts, streams=size.streams, window=size.window)
        progress(f"{arm.name}, round {number}: {result['per_s']:.0f} parts/s")
        rounds[arm.name].append(result)
    each = {
        arm.name: size.parts // arm.parts_each * arm.parts_each // len(arm.chains) for arm in arms
    }
    _finish(arms, each, size)
    return {name: of_arm[size.warm_ups :] for name, of_arm in rounds.items()}


def paced(arms: Sequence[SpeedArm], size: SpeedSize, rate: float) -> Rounds:
    """Run paced rounds with `rate` parts/s to each chain; returns the figures that count."""
    count, messages = size.warm_ups + size.rounds, max(1, round(rate * size.seconds))
    with PacedRounds(arms, count, messages, rate) as running:
        for number, arm in in_turns(arms, count):
            progress(f"{arm.name}, round {number}")
            running.run(arm, number)
        rounds = {arm.name: running.figures(arm) for arm in arms}
    _finish(arms, {arm.name: messages for arm in arms}, size)
    return {name: of_arm[size.warm_ups :] for name, of_arm in rounds.items()}


def _finish(arms: Sequence[SpeedArm], each: Mapping[str, int], size: SpeedSize) -> None:
    """Check the ledgers: `each` is what a chain got in a round of an arm. Writes the profile."""
    rounds = size.warm_ups + size.rounds
    for deployment in {id(arm.deployment): arm.deployment for arm in arms}.values():
        sharing = [arm for arm in arms if arm.deployment is deployment]
        count = rounds * sum(each[arm.name] for arm in sharing)
        verify(deployment, dict.fromkeys(sharing[0].chains, count))
        if size.profile:
            _write_profile(deployment, size.profile[1])


def _write_profile(deployment: OrdererDeployment, file: Path) -> None:
    nodes = deployment.nodes
    files = [nodes.profile(number) for number in range(len(nodes.addresses))]
    profile = merged([json.loads(each.read_bytes()) for each in files])
    file.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")


# -- the three measurements ------------------------------------------------------------------------


def latency(size: SpeedSize, batches: Sequence[str], rates: Sequence[float]) -> Iterator[SpeedRow]:
    """Compare bundles over two chains with single transactions, for each batch setting and rate."""
    for batch in batches:
        messages_max, timeout = batch_setting(batch)
        for rate in rates:
            setting = f"{rate:g} parts/s a chain, blocks of {messages_max}, {timeout}"
            progress(f"latency, {setting}")
            with both_arms(service(size, 2, messages_max=messages_max, timeout=timeout)) as arms:
                rounds = paced(size.arms(*arms), size, rate)
            if len(rounds) > 1:
                yield row(LATENCY, setting, "p50_ms", rounds, mark=1.3, at_most=True)
                yield row(LATENCY, setting, "p99_ms", rounds, mark=None, at_most=True)


def throughput(size: SpeedSize, chains: Sequence[int]) -> Iterator[SpeedRow]:
    """Compare the parts/s of bundles over so many chains with those of single transactions."""
    for count in chains:
        progress(f"throughput, {count} chains")
        with both_arms(_full_blocks(size, count)) as arms:
            rounds = saturated(size.arms(*arms), size)
        if len(rounds) > 1:
            yield row(THROUGHPUT, f"{count} chains", "per_s", rounds, mark=0.8, at_most=False)


def before(
    size: SpeedSize, source: Path, batches: Sequence[str], rates: Sequence[float]
) -> Iterator[SpeedRow]:
    """Compare nodes of this source with those of another one, by single transactions."""
    for count in (_ALONE, _IN_A_SET):
        where = "a chain alone" if count == _ALONE else f"{count} chains, ordered by a collector"
        progress(f"throughput of another version, {where}")
        with both_sources(_full_blocks(size, count), source) as arms:
            rounds = saturated(size.arms(*arms), size)
        yield row(BEFORE, where, "per_s", rounds, mark=1.0, at_most=False)
        messages_max, timeout = batch_setting(batches[-1])
        setting = f"{where}, {rates[-1]:g}/s a chain, blocks of {messages_max}, {timeout}"
        progress(f"latency of another version, {setting}")
        sized = service(size, count, messages_max=messages_max, timeout=timeout)
        with both_sources(sized, source) as arms:
            rounds = paced(size.arms(*arms), size, rates[-1])
        yield row(BEFORE, setting, "p50_ms", rounds, mark=1.0, at_most=True)


def _full_blocks(size: SpeedSize, chains: int) -> Service:
    return service(size, chains, messages_max=_SATURATED_MESSAGES, timeout=_SATURATED_TIMEOUT)


def batch_setting(text: str) -> tuple[int, str]:
    """Read "10/50ms": messages in a block at most, and the batch time-out; raises `UsageError`."""
    count, slash, timeout = text.partition("/")
    if not slash or not timeout or not count.isdecimal() or int(count) < 1:
        raise UsageError(f"{text!r} is not COUNT/TIMEOUT, such as 10/50ms")
    return int(count), timeout


# -- the command -----------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Make the parser of `python -m bench.orderer.speed`."""
    made = figures.parser("speed", __doc__, room="orderer")
    made.add_argument(
        "measurements", nargs="*", metavar="MEASUREMENT", help="default: the first two"
    )
    made.add_argument("--rounds", type=int, default=7, help="rounds of each arm that count")
    made.add_argument("--seconds", type=float, default=10.0, help="latency: length of a round")
    made.add_argument("--rates", type=float, nargs="+", default=[20.0, 100.0],
                      help="latency: parts/s of each chain")  # fmt: skip
    made.add_argument("--batches", nargs="+", default=["1/50ms", "10/50ms"],
                      metavar="COUNT/TIMEOUT", help="latency: settings of the blocks")  # fmt: skip
    made.add_argument(
        "--chains", type=int, nargs="+", default=[2, 4, 8], help="throughput: how many"
    )
    made.add_argument("--parts", type=int, default=8000, help="throughput: parts in a round")
    made.add_argument("--streams", type=int, default=2, help="throughput: streams to each node")
    made.add_argument("--window", type=int, default=128,
                      help="throughput: unanswered parts in a stream")  # fmt: skip
    made.add_argument("--nodes", type=int, default=NODES, help="nodes of the service")
    made.add_argument("--against", type=Path, metavar="PATH",
                      help="before: a folder with the other version of this project")  # fmt: skip
    made.add_argument("--profile", nargs=2, metavar=("ARM", "FILE"), help="profile one arm")
    return made


def checked(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; raises `UsageError` where they do not fit together."""
    chosen = parser().parse_args(arguments)
    chosen.measurements = chosen.measurements or [LATENCY, THROUGHPUT]
    for name in chosen.measurements:
        if name not in (LATENCY, THROUGHPUT, BEFORE):
            raise UsageError(
                f"there is no measurement {name!r}; known: latency, throughput, before"
            )
    for batch in chosen.batches:
        batch_setting(batch)
    if (BEFORE in chosen.measurements) != (chosen.against is not None):
        raise UsageError("'before' and '--against PATH' need each other")
    if chosen.against is not None and not (chosen.against / "multicast").is_dir():
        raise UsageError(f"{chosen.against} is no copy of this project: it has no folder multicast")
    if chosen.against is not None and not interpreter(chosen.against).exists():
        raise UsageError(f"{chosen.against} has no environment: run 'make .venv/ready' there")
    if min(chosen.rounds, chosen.nodes) < 1 or min(chosen.rates) <= 0 or min(chosen.chains) < 2:
        raise UsageError("--rounds, --nodes and --rates must be positive, --chains at least 2")
    if any(chosen.parts % chains for chains in chosen.chains):
        raise UsageError("--parts must be a multiple of each number of --chains")
    if chosen.profile and (chosen.profile[0] not in (SINGLE, BUNDLE) or chosen.against):
        raise UsageError(f"--profile needs the arm {SINGLE} or {BUNDLE}")
    return chosen


def measure(chosen: argparse.Namespace) -> Iterator[SpeedRow]:
    """Run what was asked for; yields a row for each comparison."""
    size = SpeedSize(
        rounds=1 if chosen.profile else chosen.rounds,
        seconds=chosen.seconds,
        parts=chosen.parts,
        streams=chosen.streams,
        window=chosen.window,
        nodes=chosen.nodes,
        profile=(chosen.profile[0], Path(chosen.profile[1])) if chosen.profile else None,
    )
    if LATENCY in chosen.measurements:
        yield from latency(size, chosen.batches, chosen.rates)
    if THROUGHPUT in chosen.measurements:
        yield from throughput(size, chosen.chains)
    if BEFORE in chosen.measurements:
        yield from before(size, chosen.against.resolve(), chosen.batches, chosen.rates)


def line(of: SpeedRow) -> str:
    """Write a row as text."""
    return (
        f"{of.measurement:10} {of.setting}: {of.figure} {of.base} {of.base_figure.median:.5g}, "
        f"{of.arm} {of.arm_figure.median:.5g}, ratio {of.ratio.median:.3f} "
        f"({of.ratio.least:.3f} to {of.ratio.greatest:.3f})"
    )


def _show(rows: Sequence[SpeedRow], arguments: Sequence[str], output: str) -> None:
    if output == "json":
        document = figures.document(
            "speed", {}, kafka="as started", arguments=arguments, room="orderer"
        )
        document["figures"] = [{**asdict(each), "met": each.met} for each in rows]
        typer.echo(json.dumps(document, indent=1))
        return
    for each in rows:
        typer.echo(line(each))
        for arm, costs in each.costs.items():
            parts = [f"{name.removeprefix('cpu_us_')} {us:.0f}" for name, us in costs.items()]
            typer.echo(f"{'':10}   CPU of {arm}, µs a part: {', '.join(parts)}")


def main(arguments: Sequence[str]) -> int:
    """Measure and print; returns the exit code."""
    try:
        chosen = checked(arguments)
        facts.at_start()
        rows = []
        for each in measure(chosen):
            progress(line(each))
            rows.append(each)
        _show(rows, arguments, chosen.output)
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
