"""The desk under any interleaving of clients, configs, lost appends, reading chains and blocks.

Afterwards the faults end, everything is read and put into blocks, and each bundle must have the
fate that the log gave it.
"""

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from multicast.drivers.protocol import AppendFailed
from multicast.errors import AppendUnknown
from ordering_osn.api.channels import FateKind
from ordering_osn.chain.bundles.intake import BundleIntake
from ordering_osn.chain.bundles.log_records import is_bundle_record, read_bundle_record
from tests.ordering_osn.helpers.bundles import AB
from tests.ordering_osn.helpers.desk import SmallDesk, signed_bundle

POSTS_MAX = 3
MADE = [signed_bundle() for _ in range(3)]
LOST = AppendFailed(AppendUnknown("nobody answered."))

CHAIN = st.sampled_from(AB)
STEP = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, len(MADE) - 1)),
    st.tuples(st.sampled_from(["read", "read", "cut", "update", "mark", "doubled"]), CHAIN),
    st.tuples(st.sampled_from(["lost", "turn", "turn"]), st.none()),
)


class Run:
    """One interleaving, and the answers of the clients."""

    def __init__(self):
        self.world = SmallDesk(intake=BundleIntake(posts_max=POSTS_MAX))
        self.sent = []

    def submit(self, number):
        made = MADE[number]
        self.sent.append((made, asyncio.ensure_future(self.world.submit(made))))

    def read(self, chain):
        self.world.read(chain)

    def cut(self, chain):
        self.world.cut(chain)

    def update(self, chain):
        self.world.update(chain)

    def mark(self, chain):
        self.world.mark(chain)

    def doubled(self, _):
        """Store the newest record once more, as another node might."""
        self.world.posts.records.append(self.world.posts.records[-1])

    def lost(self, _):
        self.world.posts.outcomes = [LOST]

    def turn(self, _):
        """The event loop turns by itself after each step."""

    async def settle(self):
        """Without faults: all markers are posted, all is read, decided and in blocks."""
        world = self.world
        world.posts.outcomes = []
        while True:
            for chain in AB:
                world.mark(chain)
            before = len(world.posts.records)
            world.read_all()
            # All that waits finds its markers, so the loop comes to rest in a few turns.
            for _ in range(60):
                await asyncio.sleep(0)
            world.read_all()
            at_rest = len(world.posts.records) == before and not len(world.desk._intake)
            if at_rest and all(task.done() for _, task in self.sent):
                break
        for chain in AB:
            world.cut(chain)


async def run(steps):
    story = Run()
    world = story.world
    for name, argument in steps:
        getattr(story, name)(argument)
        await asyncio.sleep(0)
        assert all(0 <= entry.posts <= POSTS_MAX for entry in world.desk._intake._open.values())
    async with asyncio.timeout(60.0):
        await story.settle()
    logged = {
        read_bundle_record(raw).bundle.id for raw in world.posts.records if is_bundle_record(raw)
    }
    counted = Counter(made for node in world.nodes.values() for made in node.rule.state.window)
    answers = Counter()
    for made, task in story.sent:
        status = task.result().status
        assert status in (200, 503)
        if status == 200:
            assert made.id in logged
        answers[status] += 1
    for made in MADE:
        fate = await world.fate(made)
        if counted[made.id]:
            assert counted[made.id] == len(AB)
            assert fate.kind is FateKind.COMMITTED
            assert set(fate.places) == set(AB)
        elif made.id in logged:
            assert (fate.kind, fate.final or fate.reason.may_count_later) == (FateKind.VOID, True)
        else:
            assert fate.kind is FateKind.UNKNOWN
    assert not world.desk._void_offsets
    assert not world.desk._under_way
    assert not world.desk._again
    assert all(node.watchers == 0 for node in world.nodes.values())
    return answers


@settings(max_examples=150)
@given(st.lists(STEP, max_size=40))
def test_every_bundle_has_the_fate_that_the_log_gives_it(steps):
    asyncio.run(run(steps))
