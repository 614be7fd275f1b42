"""A node that resumes from an idle checkpoint writes the same blocks as one that does not."""

from ordering_osn.chain.state import IdleCheckpoint, StreamPosition, state_from
from ordering_osn.node.checkpoint import read_checkpoint, write_checkpoint
from tests.ordering_osn.chain.test_restarts import Node, World, fresh, of_each_seed
from tests.ordering_osn.helpers.cores import Stepped, genesis, rules


class Checkpointing(Node):
    """A node that has its blocks and its newest checkpoint after a crash."""

    checkpoint = None

    def restart(self):
        super().restart()
        if self.checkpoint is not None:
            state = self.checkpoint.advance(self.state())
            self.chain = self.core(state)
            self.position = max(state.position.number, 0)

    def step(self, *, crash_at=None):
        super().step(crash_at=crash_at)
        checkpoint = self.chain.idle_checkpoint()
        if crash_at is None and checkpoint is not None and not self.owed:
            self.checkpoint = checkpoint


@of_each_seed
def test_nodes_that_resume_from_their_checkpoints_write_the_same_blocks(seed):
    world = World(seed, old=20)
    world.nodes[1:] = [Checkpointing(world.log), Checkpointing(world.log)]
    world.run()
    first, *others = world.nodes
    for node in others:
        assert node.serialized == first.serialized
        node.restart()
        assert node.chain.idle_checkpoint() == first.chain.idle_checkpoint()
    assert fresh(world.log).serialized == first.serialized


def test_a_checkpoint_is_taken_only_where_nothing_is_pending_and_holds_the_cursors():
    stepped = Stepped(rules(messages_max=2))
    assert stepped.chain.idle_checkpoint().position.number == -3
    stepped.normal("a")
    assert stepped.chain.idle_checkpoint() is None
    stepped.normal("b")
    checkpoint = stepped.chain.idle_checkpoint()
    assert (checkpoint.height, checkpoint.position.number, checkpoint.last_original) == (2, 2, 0)
    stepped.normal("b")  # a replay: no block, but it was read
    assert stepped.chain.idle_checkpoint().position == StreamPosition(3, "cursor 3")


def test_a_checkpoint_of_other_blocks_has_no_effect():
    state = state_from([genesis()])
    here = IdleCheckpoint(state.height, state.previous_hash, StreamPosition(7, "c"), 5, 6)
    assert here.advance(state).position == StreamPosition(7, "c")
    for other in (here._replace(height=2), here._replace(previous_hash=b"other")):
        assert other.advance(state) is state


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path):
    checkpoint = IdleCheckpoint(3, b"\xff" * 32, StreamPosition(9, "1/K1/4/0/17"), 5, 6)
    write_checkpoint(tmp_path / "rest.json", checkpoint)
    assert read_checkpoint(tmp_path / "rest.json") == checkpoint
    assert read_checkpoint(tmp_path / "missing.json") is None
