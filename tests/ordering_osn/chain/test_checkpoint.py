"""Where an idle chain stood is noted: a node that goes on from the note writes the same blocks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ordering_osn.chain.chain import Chain, Rest, StreamPosition, state_from
from ordering_osn.node.checkpoint import read_rest, write_rest
from tests.ordering_osn.chain.test_restarts import WINDOW, Node, World, fresh
from tests.ordering_osn.helpers.cores import Stepped, genesis, rules


class Resting(Node):
    """A node that a crash leaves the blocks and the newest note."""

    rest = None

    def restart(self):
        super().restart()
        if self.rest is not None:
            state = self.rest.within(state_from(reversed(self.blocks), window_max=WINDOW))
            self.chain = Chain(self.rules[state.last_config], state, window_max=WINDOW)
            self.position = max(state.place.position, 0)

    def step(self, *, crash_at=None):
        super().step(crash_at=crash_at)
        rest = self.chain.at_rest()
        if crash_at is None and rest is not None and not self.owed:
            self.rest = rest


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_nodes_that_go_on_from_their_notes_write_the_same_blocks(seed):
    world = World(seed, old=20)
    world.nodes[1:] = [Resting(world.log), Resting(world.log)]
    world.run()
    first, *others = world.nodes
    for node in others:
        assert node.said == first.said
        node.restart()
        assert node.chain.at_rest() == first.chain.at_rest()
    assert fresh(world.log).said == first.said


def test_a_note_is_taken_only_where_nothing_is_pending_and_says_the_marks():
    stepped = Stepped(rules(messages_max=2))
    assert stepped.chain.at_rest().place.position == -3
    stepped.normal("a")
    assert stepped.chain.at_rest() is None
    stepped.normal("b")
    rest = stepped.chain.at_rest()
    assert (rest.height, rest.place.position, rest.last_original) == (2, 2, 0)
    stepped.normal("b")  # a replay: no block, but it was read
    assert stepped.chain.at_rest().place == StreamPosition(3, "cursor 3")


def test_a_note_of_other_blocks_says_nothing():
    state = state_from([genesis()])
    here = Rest(state.height, state.previous_hash, StreamPosition(7, "c"), 5, 6)
    assert here.within(state).place == StreamPosition(7, "c")
    for other in (here._replace(height=2), here._replace(previous_hash=b"other")):
        assert other.within(state) is state


def test_a_note_reads_back_as_it_was_written(tmp_path):
    rest = Rest(3, b"\xff" * 32, StreamPosition(9, "1/K1/4/0/17"), 5, 6)
    write_rest(tmp_path / "rest.json", rest)
    assert read_rest(tmp_path / "rest.json") == rest
    assert read_rest(tmp_path / "missing.json") is None
