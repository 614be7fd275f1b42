"""Every interleaving at small scope, with the real cores.

    scope       a small world: its tree, instances, messages, and how much may go wrong
    step        an append is stored, an instance reads or ticks, the next epoch begins
    event       a step that may as well never happen: a message is started, a fault, a transaction
                begins or ends, the markers of a change of the plan are written
    at rest     of a state: nothing is in flight; each stream has ordered its logs exactly to their
                ends, and a child what its parent has; no log has a debt or is held, so its next
                ticket orders exactly its next message

Checked in every state: what a stream orders of a log continues without gap and repetition; a
child's order of its inherited logs is a prefix of its parent's; a reader that begins at a
checkpoint has the state of who has read everything; no stream is taken for one that has strayed.
Where an epoch ends, all streams agree on each log's position, which is not below its marker. And
from every state steps that are no events lead to one at rest: nothing is late for ever.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bench.search.machines import Wrong
from bench.search.moves import ScopeMoves
from bench.search.scopes import Scope, ScopeState


@dataclass(frozen=True, slots=True)
class ScopeResult:
    """The result: counts, and a violation with the steps to it; "" if there is none."""

    states: int
    steps: int
    at_rest: int
    violation: str = ""
    path: tuple[str, ...] = ()


class ScopeExplorer:
    """Explores all reachable states of a scope, up to the first that is wrong."""

    def __init__(self, scope: Scope) -> None:
        self._moves = ScopeMoves(scope)
        self._agreed: set[tuple[int, ...]] = set()
        self._numbers: dict[ScopeState, int] = {}
        self._came_from: list[tuple[int, str]] = []

    def explore(self) -> ScopeResult:
        """Visit every state once, breadth first."""
        moves, numbers = self._moves, self._numbers
        first = moves.tidy(moves.first())
        numbers[first] = 0
        self._came_from.append((-1, ""))
        waiting = deque([first])
        sources, targets, resting = array("l"), array("l"), array("l")
        steps = number = 0
        try:
            while waiting:
                state = waiting.popleft()
                number = numbers[state]
                if self._rests(state):
                    resting.append(number)
                for step, found, is_event in moves.steps(state):
                    steps += 1
                    other = moves.tidy(found)
                    target = numbers.get(other)
                    if target is None:
                        target = numbers[other] = len(numbers)
                        self._came_from.append((number, step))
                        waiting.append(other)
                        self._compare(other)
                    if target != number and not is_event:
                        sources.append(number)
                        targets.append(target)
        except Wrong as wrong:
            path = (*self._path(number), "the next step is wrong")
            return ScopeResult(len(numbers), steps, len(resting), str(wrong), path)
        stuck = _first_stuck(len(numbers), sources, targets, resting)
        if stuck is None:
            return ScopeResult(len(numbers), steps, len(resting))
        violation = "from here no steps lead to a state at rest"
        return ScopeResult(len(numbers), steps, len(resting), violation, self._path(stuck))

    def _compare(self, state: ScopeState) -> None:
        if state.streams in self._agreed:
            return
        self._agreed.add(state.streams)
        tree, nodes = self._moves.tree(state), self._moves.streams.nodes
        for node, parent in enumerate(tree.parents):
            if parent is None:
                continue
            above, below = nodes[state.streams[parent]], nodes[state.streams[node]]
            shared = {*tree.bags[parent]} & {*tree.bags[node]}
            first = [entry for entry in above.order if entry[0] in shared]
            second = [entry for entry in below.order if entry[0] in shared]
            if second != first[: len(second)]:
                raise Wrong(f"a child orders {second}, its parent {first}")

    def _rests(self, state: ScopeState) -> bool:
        moves = self._moves
        if state.markers or not moves.calm(state):
            return False
        tree = moves.tree(state)
        states = [moves.streams.nodes[stream].whole.state for stream in state.streams]
        for node, one in enumerate(states):
            for log, position in one.positions.items():
                top = tree.top(log)
                if position != states[top].positions[log]:
                    return False
                if top != node or (log == 0 and state.hidden >= 0):
                    continue
                if position != state.ends[log] or one.debts[log] or log in one.held:
                    return False
        return True

    def _path(self, number: int) -> tuple[str, ...]:
        path: list[str] = []
        while number > 0:
            number, step = self._came_from[number]
            path.append(step)
        return tuple(reversed(path))


def _first_stuck(
    count: int, sources: Sequence[int], targets: Sequence[int], resting: Sequence[int]
) -> int | None:
    """Give the first state from which no edges lead to a resting one."""
    starts = array("l", bytes(array("l").itemsize * (count + 1)))
    for target in targets:
        starts[target + 1] += 1
    for number in range(count):
        starts[number + 1] += starts[number]
    places, before = array("l", starts), array("l", sources)
    for source, target in zip(sources, targets, strict=True):
        before[places[target]] = source
        places[target] += 1
    reaches = bytearray(count)
    waiting = list(resting)
    for number in waiting:
        reaches[number] = 1
    while waiting:
        number = waiting.pop()
        for source in before[starts[number] : starts[number + 1]]:
            if not reaches[source]:
                reaches[source] = 1
                waiting.append(source)
    stuck = reaches.find(0)
    return None if stuck < 0 else stuck
