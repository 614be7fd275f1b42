"""Each refusal at the desk: its status, its chain, and that nothing is appended."""

import asyncio
from dataclasses import replace

import pytest

from multicast.drivers.protocol import AppendFailed
from multicast.errors import AppendRefused, AppendUnknown, BufferFull, ClusterUnreachable
from ordering_osn.api.channels import Refused
from ordering_osn.chain.bundles.bundle import check_signature, encode_bundle
from ordering_osn.chain.bundles.intake import BundleIntake
from ordering_osn.identity import Identity
from ordering_osn.node.bundles.admission import admit
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.desk import SmallDesk, signed_bundle
from tests.ordering_osn.helpers.pki import root

STRANGER = configs.Member(root().issue("x", units=["client"]), "Org1MSP")


def answer(world, made):
    """Submit; a refusal must leave nothing open and append nothing."""

    async def ask():
        before = world.posts.started
        answered = await world.submit(made)
        if answered.status != 200:
            assert world.posts.started == before
            assert len(world.desk._intake) == 0
        return answered

    return asyncio.run(ask())


def refusal(world, made):
    answered = answer(world, made)
    assert answered.info
    assert "\n" not in answered.info
    return answered.status, answered.chain


def test_a_bundle_that_passes_is_stamped_with_the_sequence_of_each_config():
    made = signed_bundle()
    world = SmallDesk()
    assert answer(world, made).status == 200
    assert world.posts.started == 1
    newer = [configs.genesis("chain-a"), configs.genesis("chain-b")]
    assert admit(made, newer, now=configs.NOW) == tuple(config.sequence for config in newer)


def test_what_cannot_be_read_is_400_and_has_no_id():
    world = SmallDesk()
    answered = answer(world, b"\xff\xff")
    assert (answered.status, answered.bundle_id) == (400, b"")
    assert world.metrics.bundles_processed.value("BAD_REQUEST") == 1


def test_a_part_for_another_channel_is_400_with_its_chain():
    made = signed_bundle()
    content = made.content.replace(b"chain-b", b"chain-c")
    forged = replace(made, content=content, signature=configs.org_user().sign(content))
    assert refusal(SmallDesk(), encode_bundle(forged))[0] == 400


@pytest.mark.parametrize(("signer", "status"), [(None, 400), (STRANGER, 403)])
def test_envelopes_are_looked_at_only_where_the_submitter_may_write_in_a_chain(signer, status):
    made = signed_bundle(signer=signer, parts_by=configs.org_user())
    parts = tuple(replace(part, envelope=b"x" * (1 << 20)) for part in made.parts)
    assert refusal(SmallDesk(), encode_bundle(replace(made, parts=parts))) == (status, "chain-a")


def test_what_is_too_large_is_413():
    assert refusal(SmallDesk(), bytes((8 << 20) + (64 << 10) + 1)) == (413, "")


def test_another_signature_is_403_without_a_chain():
    forged = replace(signed_bundle(), signature=signed_bundle().signature)
    assert refusal(SmallDesk(), encode_bundle(forged)) == (403, "")


@pytest.mark.parametrize("wrong", ["chain-a", "chain-b"])
def test_a_part_by_a_stranger_is_403_with_its_chain(wrong):
    made = signed_bundle(**{wrong: configs.transaction(wrong, signer=STRANGER)})
    assert refusal(SmallDesk(), made) == (403, wrong)


def test_a_submitter_without_rights_is_403_with_the_first_chain():
    made = signed_bundle(signer=STRANGER, parts_by=configs.org_user())
    answered = answer(SmallDesk(), made)
    assert (answered.status, answered.chain) == (403, "chain-a")
    assert "submitter" in answered.info


def test_a_submitter_needs_rights_on_each_chain():
    authority = root("ca.org2")
    submitter = configs.Member(authority.issue("member", units=["client"]), "Org2MSP")
    world = SmallDesk()
    for name, status in (("chain-a", 403), ("chain-b", 200)):
        made = signed_bundle(signer=submitter, parts_by=configs.org_user())
        wider = configs.with_organisation(configs.genesis(name), authority)
        world.nodes[name].config = wider
        answered = answer(world, made)
        assert (answered.status, answered.chain) == (status, "chain-b" if status == 403 else "")


def test_the_first_of_two_bad_parts_counts():
    made = signed_bundle(
        chain_a=configs.transaction("chain-a", signer=STRANGER),
        chain_b=configs.transaction("chain-b", data=b"x" * 2000),
    )
    world = SmallDesk()
    sizes = {"absolute_max_bytes": 1500, "preferred_max_bytes": 1500}
    small = configs.changed(configs.genesis("chain-b"), lambda new: configs.set_batch(new, **sizes))
    world.nodes["chain-b"].config = configs.ChannelConfig("chain-b", small)
    assert refusal(world, made) == (403, "chain-a")
    made = signed_bundle(chain_b=configs.transaction("chain-b", data=b"x" * 2000))
    assert refusal(world, made) == (400, "chain-b")


def test_a_chain_in_maintenance_is_503_with_its_chain():
    world = SmallDesk()
    world.nodes["chain-b"].config = configs.in_maintenance(configs.genesis("chain-b"))
    assert refusal(world, signed_bundle()) == (503, "chain-b")


def test_an_undeclared_set_is_404_and_says_what_to_do():
    world = SmallDesk()
    world.posts.declared = False
    answered = answer(world, signed_bundle())
    assert (answered.status, answered.chain) == (404, "")
    assert "amcast topology apply" in answered.info


def test_a_chain_that_this_node_does_not_run_is_404_with_its_chain():
    world = SmallDesk(runs=["chain-a"])
    assert refusal(world, signed_bundle()) == (404, "chain-b")


def test_a_chain_that_cannot_be_opened_is_503_with_its_chain():
    world = SmallDesk(runs=["chain-a"])
    world.closed["chain-b"] = "its ledger is damaged"
    assert refusal(world, signed_bundle()) == (503, "chain-b")


def test_a_chain_in_trouble_is_503_with_its_chain():
    world = SmallDesk()
    world.nodes["chain-b"].status.why_not = "its log does not answer"
    assert refusal(world, signed_bundle()) == (503, "chain-b")


def test_without_a_marker_in_time_it_is_503_with_the_chain_that_lacks_it():
    world = SmallDesk(ready_s=0.0, introduce=False)
    assert refusal(world, signed_bundle()) == (503, "chain-a")
    assert all(node.watchers == 0 for node in world.nodes.values())


def test_a_node_that_is_full_is_503():
    world = SmallDesk(intake=BundleIntake(bytes_max=100))
    assert refusal(world, signed_bundle()) == (503, "")


@pytest.mark.parametrize("error", [BufferFull("no room"), ClusterUnreachable("nobody answered")])
def test_a_producer_that_takes_nothing_is_503(error):
    world = SmallDesk()
    world.posts.refuses = error
    assert refusal(world, signed_bundle()) == (503, "")


@pytest.mark.parametrize(
    ("error", "doubt"), [(AppendUnknown("nobody answered."), True), (AppendRefused("no."), False)]
)
async def test_a_record_that_is_not_stored_is_503_and_the_answer_says_whether_it_may_count(
    error, doubt
):
    world = SmallDesk()
    world.posts.outcomes = [AppendFailed(error)]
    made = signed_bundle()
    answered = await world.submit(made)
    assert (answered.status, answered.chain) == (503, "")
    assert ("may count all the same" in answered.info) == doubt
    assert len(world.desk._intake) == 0
    # Sent again, it is posted again.
    assert (await world.submit(made)).status == 200
    assert world.posts.started == 2


def test_the_submitter_is_verified_once_for_all_chains_and_each_part_in_its_own(monkeypatch):
    made, world = signed_bundle(), SmallDesk()
    verified = []
    whole = Identity.verify

    def counted(identity, message, signature):
        verified.append(message)
        whole(identity, message, signature)

    monkeypatch.setattr(Identity, "verify", counted)
    newer = [configs.genesis("chain-a"), configs.genesis("chain-b")]
    admit(made, newer, now=configs.NOW)
    assert verified.count(made.content) == 1
    assert len(verified) == 3
    verified.clear()
    made = signed_bundle()  # the parts of the first are known to be genuine
    assert answer(world, made).status == 200
    assert made.content not in verified  # `check_signature` has verified it
    assert len(verified) == 2


def test_what_was_verified_as_somebody_else_is_verified_again():
    made = signed_bundle()
    forged = replace(made, signature=signed_bundle().signature)
    elsewhere = check_signature(*signed_bundle(signer=STRANGER).signed)
    with pytest.raises(Refused) as refused:
        admit(forged, [configs.genesis("chain-a")] * 2, now=configs.NOW, verified=elsewhere)
    assert (refused.value.status, refused.value.chain) == (403, "chain-a")


# -- the end of the set's log ----------------------------------------------------------------------


def log_end(world):
    return asyncio.run(world.desk.log_end(world.chains))


def test_the_end_of_the_log_is_behind_its_last_record():
    assert log_end(SmallDesk()) == 2  # the markers


def test_a_node_that_cannot_say_where_the_log_ends_says_why():
    undeclared, away = SmallDesk(), SmallDesk()
    undeclared.posts.declared = False
    away.posts.refuses = ClusterUnreachable("nobody answered")
    for world, status in ((undeclared, 404), (SmallDesk(runs=["chain-a"]), 404), (away, 503)):
        with pytest.raises(Refused) as refused:
            log_end(world)
        assert refused.value.status == status
