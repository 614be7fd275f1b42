"""What a desk does with the bundles that it took in, and what it says of them."""

import asyncio
import threading
from types import SimpleNamespace

from multicast.drivers.protocol import AppendFailed
from multicast.errors import AppendUnknown
from ordering_osn.api.channels import FateKind
from ordering_osn.chain.bundles.intake import BundleIntake
from ordering_osn.chain.bundles.log_records import read_bundle_record
from ordering_osn.chain.bundles.rule import BundleVoid, VoidReason
from ordering_osn.node.bundles.fates import BundleFates
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.bundles import AB, marker
from tests.ordering_osn.helpers.desk import SmallDesk, SmallStatus, in_thread, signed_bundle

ABC = ("chain-a", "chain-b", "chain-c")


def stamps(world):
    """The stamps of all bundle records in the log."""
    records = [raw for raw in world.posts.records if raw and raw[:2] == b"\x82\x01"]
    return [read_bundle_record(raw).stamps for raw in records]


def without_rights(config):
    """The config in which no member of Org1 may write."""

    def change(new):
        group = new.channel_group.groups["Application"].groups["Org1MSP"]
        del group.policies["Writers"]
        new.sequence += 1

    return configs.ChannelConfig(config.channel_id, configs.changed(config, change))


def overtaken(world, sequence=1):
    """Store a marker of a newer config of chain-a, which no chain has read yet."""
    world.posts.records.append(marker("chain-a", sequence, block=sequence))


async def test_a_bundle_is_committed_when_every_chain_has_its_part_in_a_durable_block():
    world, made = SmallDesk(), signed_bundle()
    assert (await world.fate(made)).kind is FateKind.UNKNOWN
    assert (await world.submit(made)).status == 200
    assert (await world.fate(made)).kind is FateKind.ACCEPTED
    waiting = asyncio.create_task(world.fate(made, 60.0))
    await asyncio.sleep(0)
    in_thread(world.read_all)
    in_thread(lambda: world.cut("chain-b"))
    assert (await world.fate(made)).kind is FateKind.ACCEPTED
    assert not waiting.done()
    in_thread(lambda: world.cut("chain-a"))
    fate = await waiting
    assert (fate.kind, fate.final, fate.chains) == (FateKind.COMMITTED, True, AB)
    assert fate.places == {"chain-a": (1, 0), "chain-b": (1, 0)}


async def test_chains_that_the_node_does_not_run_are_not_waited_for():
    world, made = SmallDesk(runs=["chain-a"]), signed_bundle()
    other = SmallDesk()  # it was sent to another node
    await other.submit(made)
    world.posts.records = other.posts.records
    world.read_all()
    world.cut("chain-a")
    fate = await world.fate(made)
    assert (fate.kind, fate.places) == (FateKind.COMMITTED, {"chain-a": (1, 0)})


async def test_a_bundle_sent_twice_is_posted_once_and_both_wait_for_the_acknowledgement():
    world, made = SmallDesk(), signed_bundle()
    world.posts.held = []
    both = [asyncio.create_task(world.submit(made)) for _ in range(2)]
    await world.turns(lambda: world.posts.held)
    assert not any(task.done() for task in both)
    world.posts.release()
    assert [answer.status for answer in await asyncio.gather(*both)] == [200, 200]
    assert (await world.submit(made)).status == 200  # open
    world.read_all()
    assert (await world.submit(made)).status == 200  # it counts
    world.cut("chain-a")
    world.cut("chain-b")
    assert (await world.submit(made)).status == 200  # committed
    assert world.posts.started == 1


async def test_both_senders_of_a_bundle_learn_that_it_was_not_stored():
    world, made = SmallDesk(), signed_bundle()
    world.posts.held, world.posts.outcomes = [], [AppendFailed(AppendUnknown("lost."))]
    both = [asyncio.create_task(world.submit(made)) for _ in range(2)]
    await world.turns(lambda: world.posts.held)
    world.posts.release()
    assert [answer.status for answer in await asyncio.gather(*both)] == [503, 503]


async def test_a_client_that_leaves_does_not_take_its_bundle_along():
    world, made = SmallDesk(), signed_bundle()
    world.posts.held = []
    client = asyncio.create_task(world.submit(made))
    await world.turns(lambda: world.posts.held)
    client.cancel()
    await asyncio.wait({client})
    world.posts.release()
    await asyncio.sleep(0)
    assert (await world.fate(made)).kind is FateKind.ACCEPTED
    world.read_all()
    assert world.metrics.bundles_counted.value("chain-a") == 1


async def test_a_stale_bundle_is_judged_and_posted_again_when_the_markers_stand():
    world, made = SmallDesk(), signed_bundle()
    overtaken(world)
    assert (await world.submit(made)).status == 200
    assert stamps(world) == [(0, 0)]
    in_thread(world.read_all)  # both chains read that it is stale
    await asyncio.sleep(0)
    assert (await world.fate(made)).kind is FateKind.ACCEPTED
    assert stamps(world) == [(0, 0)]  # the config is not in force here yet
    in_thread(lambda: world.update("chain-a"))
    await world.turns(lambda: len(stamps(world)) == 2)
    assert stamps(world)[1] == (1, 0)
    world.read_all()
    assert world.metrics.bundles_counted.value("chain-b") == 1
    assert world.metrics.bundles_void.value("chain-a", "STALE") == 1
    assert world.metrics.bundles_reposted.value() == 1
    assert world.posts.started == 2
    assert all(node.watchers == 0 for node in world.nodes.values())


async def test_a_stale_bundle_that_is_refused_now_is_void_with_its_reason_and_chain():
    world, made = SmallDesk(), signed_bundle()
    overtaken(world)
    await world.submit(made)
    node = world.nodes["chain-a"]
    node.config = without_rights(node.config)
    waiting = asyncio.create_task(world.fate(made, 60.0))
    await asyncio.sleep(0)
    in_thread(world.read_all)
    fate = await waiting
    assert (fate.kind, fate.final) == (FateKind.VOID, True)
    assert (fate.reason, fate.void_chain) == (VoidReason.STALE, "chain-a")
    assert world.posts.started == 1


async def test_a_bundle_that_is_stale_again_and_again_is_given_up():
    world, made = SmallDesk(intake=BundleIntake(posts_max=2)), signed_bundle()
    overtaken(world, 1)
    await world.submit(made)
    world.read_all()
    overtaken(world, 2)
    world.update("chain-a")
    await world.turns(lambda: len(stamps(world)) == 2)
    world.read_all()
    fate = await world.fate(made, 60.0)
    assert (fate.kind, fate.reason, fate.final) == (FateKind.VOID, VoidReason.STALE, True)
    # The client may send it again.
    world.update("chain-a")
    assert (await world.submit(made)).status == 200
    assert (await world.fate(made)).kind is FateKind.ACCEPTED
    world.read_all()
    assert world.metrics.bundles_counted.value("chain-a") == 1


async def test_a_config_that_changes_before_the_post_is_the_one_that_judges():
    world = SmallDesk()
    for change, status in ((lambda config: config, 200), (without_rights, 403)):
        world.update("chain-b")
        submitted = asyncio.create_task(world.submit(signed_bundle()))
        await world.turns(lambda: world.nodes["chain-b"].watchers)
        world.update("chain-b")
        node = world.nodes["chain-b"]
        node.config = change(node.config)
        world.mark("chain-b")
        in_thread(world.read_all)
        answer = await submitted
        assert (answer.status, answer.chain) == (status, "" if status == 200 else "chain-b")
    assert stamps(world) == [(0, 2)]


async def test_bundles_of_a_set_are_posted_in_the_order_in_which_they_were_sent():
    world = SmallDesk(introduce=False)
    made = [signed_bundle() for _ in range(5)]
    sent = [asyncio.create_task(world.submit(each)) for each in made]
    await world.turns(lambda: world.nodes["chain-a"].watchers)
    world.introduce()
    in_thread(world.read_all)
    assert [answer.status for answer in await asyncio.gather(*sent)] == [200] * 5
    ids = [read_bundle_record(raw).bundle.id for raw in world.posts.records[2:]]
    assert ids == [each.id for each in made]


async def test_a_bundle_does_not_overtake_one_that_waits_for_its_chain():
    class ReadyLater(SmallStatus):
        """The first who asks waits; the chain is ready when the next one asks."""

        def __init__(self):
            super().__init__()
            self.gate = asyncio.Event()
            self.calls = 0

        async def ready(self, timeout_s, *, bundles):
            self.calls += 1
            if self.calls == 1:
                await self.gate.wait()
            await super().ready(timeout_s, bundles=bundles)

    world, made = SmallDesk(), [signed_bundle() for _ in range(2)]
    status = world.nodes["chain-a"].status = ReadyLater()
    first = asyncio.create_task(world.submit(made[0]))
    await world.turns(lambda: status.calls)
    second = asyncio.create_task(world.submit(made[1]))
    for _ in range(5):
        await asyncio.sleep(0)
    status.gate.set()
    assert [answer.status for answer in await asyncio.gather(first, second)] == [200, 200]
    ids = [read_bundle_record(raw).bundle.id for raw in world.posts.records[2:]]
    assert ids == [each.id for each in made]


async def test_a_void_record_is_taken_once_although_each_chain_reads_it():
    world, made = SmallDesk(), signed_bundle()
    overtaken(world)
    await world.submit(made)
    for _ in range(2):  # the marker, and the bundle, which is stale
        world.read("chain-a")
    world.update("chain-a")
    world.read("chain-b")  # the marker
    await world.turns(lambda: world.posts.started == 2)
    world.read("chain-b")  # the first record, behind the second post
    for _ in range(5):
        await asyncio.sleep(0)
    world.read_all()
    assert world.metrics.bundles_reposted.value() == 1
    assert world.posts.started == 2


async def test_a_void_bundle_that_is_sent_again_and_may_be_stored_is_not_said_to_be_void():
    world, made = SmallDesk(intake=BundleIntake(posts_max=1)), signed_bundle()
    overtaken(world)
    await world.submit(made)
    world.read_all()
    assert (await world.fate(made)).kind is FateKind.VOID
    world.update("chain-a")
    world.posts.outcomes = [AppendFailed(AppendUnknown("nobody answered."))]
    assert (await world.submit(made)).status == 503
    assert (await world.fate(made)).kind is FateKind.UNKNOWN


async def test_a_record_that_was_stored_although_kafka_did_not_say_so_counts():
    world, made = SmallDesk(), signed_bundle()
    other = SmallDesk()
    await other.submit(made)
    world.posts.outcomes = [AppendFailed(AppendUnknown("nobody answered."))]
    assert (await world.submit(made)).status == 503
    assert (await world.fate(made)).kind is FateKind.UNKNOWN
    world.posts.records.append(other.posts.records[-1])
    world.read_all()
    world.cut("chain-a")
    world.cut("chain-b")
    assert (await world.fate(made)).kind is FateKind.COMMITTED


async def test_an_expired_bundle_is_void_for_good_with_no_chain():
    world, made = SmallDesk(), signed_bundle(expiry=1)
    assert (await world.submit(made)).status == 200
    world.read_all()
    fate = await world.fate(made, 60.0)
    assert (fate.kind, fate.reason, fate.void_chain) == (FateKind.VOID, VoidReason.EXPIRED, "")
    assert world.posts.started == 1


async def test_a_record_in_the_log_of_another_set_says_nothing_about_the_bundle():
    world, made = SmallDesk(), signed_bundle()
    await world.submit(made)
    void = BundleVoid(made.id, VoidReason.WRONG_CHAINS, "", "")
    world.desk.read("chain-a", ABC, 0, void)
    assert (await world.fate(made)).kind is FateKind.ACCEPTED
    world.read_all()
    world.cut("chain-a")
    world.cut("chain-b")
    assert (await world.fate(made)).kind is FateKind.COMMITTED


def restored(made, block):
    places = [SimpleNamespace(bundle_id=made.id, block=block, index=3)]
    return [SimpleNamespace(chains=made.chains, places=places)]


async def test_after_a_restart_the_bundles_of_the_windows_are_known():
    world, made = SmallDesk(), signed_bundle()
    world.desk.restored("chain-a", restored(made, 7))
    assert (await world.fate(made)).kind is FateKind.ACCEPTED
    world.desk.restored("chain-b", restored(made, 9))
    assert (await world.fate(made)).places == {"chain-a": (7, 3), "chain-b": (9, 3)}
    assert (await world.submit(made)).status == 200
    assert world.posts.started == 0


async def test_a_gap_behind_which_a_part_stands_settles_the_bundle_and_another_posts_it_again():
    world = SmallDesk()
    stands, lost = signed_bundle(), signed_bundle()
    await world.submit(stands)
    await world.submit(lost)
    in_thread(lambda: world.desk.restored("chain-a", restored(stands, 7)))
    await world.turns(lambda: world.posts.started == 3)
    assert read_bundle_record(world.posts.records[-1]).bundle.id == lost.id
    world.read_all()  # the copy is a duplicate
    assert len(world.desk._intake) == 0
    for chain in AB:
        world.cut(chain)
    for made in (stands, lost):
        assert (await world.fate(made)).kind is FateKind.COMMITTED


def test_a_node_whose_event_loop_has_ended_gives_up():
    world, made = SmallDesk(), signed_bundle()
    overtaken(world)
    assert asyncio.run(world.submit(made)).status == 200
    world.read_all()  # its loop is closed
    fate = asyncio.run(world.fate(made))
    assert (fate.kind, fate.reason) == (FateKind.VOID, VoidReason.STALE)


async def test_a_wait_ends_in_time_with_what_is_known():
    world, made = SmallDesk(), signed_bundle()
    assert (await world.fate(made, 0.01)).kind is FateKind.UNKNOWN
    await world.submit(made)
    assert (await world.fate(made, 0.01)).kind is FateKind.ACCEPTED
    assert not world.desk._fate_changed._events


async def test_many_threads_report_while_clients_submit():
    world = SmallDesk()
    made = [signed_bundle() for _ in range(20)]
    over = threading.Event()

    def follow(name):
        while not over.is_set() or world.read(name):
            world.read(name)
            world.cut(name)

    threads = [threading.Thread(target=follow, args=(name,)) for name in AB]
    for thread in threads:
        thread.start()
    try:
        answers = await asyncio.gather(*[world.submit(each) for each in made])
        assert [answer.status for answer in answers] == [200] * 20
        fates = await asyncio.gather(*[world.fate(each, 60.0) for each in made])
    finally:
        over.set()
        for thread in threads:
            thread.join(60.0)
    assert {fate.kind for fate in fates} == {FateKind.COMMITTED}
    assert len({fate.places["chain-a"] for fate in fates}) == 20


def test_the_memory_of_fates_is_bounded():
    fates = BundleFates(counted_max=2, voids_max=2)
    made = [bytes([number]) * 32 for number in range(5)]
    for each in made[:3]:
        fates.counted(each, AB)
    fates.counted(made[3], ABC)  # another set
    known = [fates.has_counted(each) for each in made]
    assert known == [False, True, True, True, False]
    for each in made:
        fates.void(each, AB, VoidReason.STALE, "chain-a", final=False)
    kinds = [fates.fate(each, frozenset(AB)).kind for each in made]
    assert kinds == [FateKind.VOID, *[FateKind.ACCEPTED] * 3, FateKind.VOID]
    fates.void(b"6" * 32, AB, VoidReason.STALE, "chain-a", final=False)
    assert fates.fate(made[0], frozenset(AB)).kind is FateKind.UNKNOWN


def test_a_final_void_stays_and_gives_way_only_to_what_counts():
    fates = BundleFates()
    fates.void(b"x", AB, VoidReason.EXPIRED, "", final=True)
    fates.void(b"x", AB, VoidReason.STALE, "chain-a", final=False)
    assert fates.fate(b"x", frozenset(AB)).reason is VoidReason.EXPIRED
    fates.counted(b"x", AB)
    assert fates.fate(b"x", frozenset(AB)).kind is FateKind.ACCEPTED
