"""Config updates: what may change, who may change it, and what a block holds afterwards."""

import contextlib

import pytest

from ordering_osn.chain.bundles.wire_format import message_field
from ordering_osn.chain.channel_rules import Invalid
from ordering_osn.chain.envelopes import canonical, signed_envelope
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.configtx import InvalidUpdate, propose, validate
from ordering_osn.identity import Identity
from ordering_osn.protos import (
    BatchSize,
    Config,
    ConfigEnvelope,
    ConfigGroup,
    ConfigUpdate,
    ConfigUpdateEnvelope,
    Envelope,
    HeaderType,
    OrdererAddresses,
    Payload,
)
from tests.ordering_osn.helpers.compute_update import (
    group_at,
    make_update,
    set_value,
    update_envelope,
)
from tests.ordering_osn.helpers.configs import (
    NOW,
    Member,
    capabilities,
    changed,
    drop,
    of_old_capabilities,
    orderer,
    orderer_admin,
    org_admin,
    org_user,
    organisation,
    parsed,
    set_batch,
    set_capabilities,
    set_consensus,
    set_timeout,
    update,
)
from tests.ordering_osn.helpers.pki import assert_one_sentence, root


def config_envelope(config, raw_update):
    """Return the CONFIG envelope that this update leads to, signed by the orderer."""
    proposed, _ = config.proposed(parsed(raw_update))
    data = canonical(proposed)
    return signed_envelope(HeaderType.CONFIG, config.channel_id, data, signer=orderer(), now=NOW)


# Updates that are accepted.


def test_the_members_admin_adds_an_organisation_whose_members_count_then(config):
    authority = root()

    def change(new):
        new.channel_group.groups["Application"].groups["Org2MSP"].CopyFrom(
            organisation(authority, "Org2MSP")
        )

    raw = update(config, change, signers=[org_admin()], sender=org_admin())
    following = config.after(config_envelope(config, raw))
    assert following.msps.names == ("OrdererMSP", "Org1MSP", "Org2MSP")
    assert following.organisations["Application", "Org2MSP"] == "Org2MSP"
    application = following.config.channel_group.groups["Application"]
    assert (application.version, application.groups["Org2MSP"].version) == (1, 0)
    # Now a majority is two of two, and Org1 alone does not remove Org2 again.
    alone = update(
        following,
        drop("Application", kind="groups", name="Org2MSP"),
        signers=[org_admin()],
        sender=org_admin(),
    )
    with pytest.raises(InvalidUpdate, match=r"\[Group\] /Channel/Application is not met"):
        propose(following, parsed(alone))
    other = Member(authority.issue("admin", units=["admin"]), "Org2MSP")
    both = update(
        following,
        drop("Application", kind="groups", name="Org2MSP"),
        signers=[org_admin(), other],
        sender=org_admin(),
    )
    without = following.after(config_envelope(following, both))
    assert without.msps.names == ("OrdererMSP", "Org1MSP")
    assert without.sequence == 2


def test_an_update_of_two_sections_needs_the_admins_of_both(config):
    def change(new):
        set_timeout(new, "1s")
        set_capabilities(new, "V2_0", group=("Application",))

    for signers in ([orderer_admin()], [org_admin()]):
        with pytest.raises(InvalidUpdate):
            propose(config, parsed(update(config, change, signers=signers)))
    both = propose(config, parsed(update(config, change, signers=[org_admin(), orderer_admin()])))
    assert both.config.sequence == 1


def test_the_channels_own_values_need_a_majority_of_the_sections_admins(config):
    def change(new):
        set_value(group_at(new), "Capabilities", capabilities("V1_4_3"))

    with pytest.raises(InvalidUpdate, match="/Channel/Admins"):
        propose(config, parsed(update(config, change)))
    both = update(config, change, signers=[orderer_admin(), org_admin()])
    assert propose(config, parsed(both)).config.sequence == 1


def test_an_absolute_mod_policy_is_the_one_that_decides(config):
    def change(new):
        set_value(group_at(new), "OrdererAddresses", OrdererAddresses(addresses=["x:1"]))

    # OrdererAddresses has the mod_policy /Channel/Orderer/Admins.
    assert propose(config, parsed(update(config, change))).config.sequence == 1
    with pytest.raises(InvalidUpdate, match="/Channel/Orderer/Admins is not met"):
        propose(config, parsed(update(config, change, signers=[org_admin()])))


def test_the_existing_mod_policy_decides_not_the_one_that_the_update_brings(config):
    def change(new):
        value = group_at(new, "Orderer").values["BatchSize"]
        value.mod_policy = "/Channel/Application/Admins"

    with pytest.raises(InvalidUpdate, match="/Channel/Orderer/Admins is not met"):
        propose(config, parsed(update(config, change, signers=[org_admin()])))
    following = config.after(config_envelope(config, update(config, change)))
    raw = update(following, lambda c: set_batch(c, max_message_count=7), signers=[org_admin()])
    assert propose(following, parsed(raw)).config.sequence == 2


# Updates that are refused.


def test_an_update_that_rests_on_an_older_version_is_refused(config):
    def capability(new):
        set_capabilities(new, "V2_0", "V1_4_2", group=("Orderer",))

    def member(new):
        group_at(new, "Orderer").groups["More"].CopyFrom(organisation(root(), "MoreMSP"))

    # The second update changes the group's members, so its read set names all of them.
    following = config.after(config_envelope(config, update(config, capability)))
    with pytest.raises(InvalidUpdate, match=r"requires .*Capabilities at version 0"):
        propose(following, parsed(update(config, member)))


def test_the_same_update_is_refused_the_second_time(config):
    raw = update(config, lambda c: set_batch(c, max_message_count=20))
    following = config.after(config_envelope(config, raw))
    with pytest.raises(InvalidUpdate):
        propose(following, parsed(raw))
    with pytest.raises(Invalid, match="sequence"):
        following.after(config_envelope(config, raw))


@pytest.mark.parametrize("signers", ["nobody", "a user", "another section's admin", "the orderer"])
def test_an_update_that_the_admins_did_not_sign_is_refused(config, signers):
    people = {
        "nobody": [],
        "a user": [org_user()],
        "another section's admin": [org_admin()],
        "the orderer": [orderer()],
    }[signers]
    raw = update(config, lambda c: set_batch(c, max_message_count=20), signers=people)
    with pytest.raises(InvalidUpdate, match=r"BatchSize is not met") as error:
        propose(config, parsed(raw))
    assert_one_sentence(error.value)


def test_a_signature_over_another_update_does_not_count(config):
    wanted = make_update(
        config.config, changed(config, lambda c: set_batch(c, max_message_count=20)), "chain-a"
    )
    other = make_update(config.config, changed(config, lambda c: set_timeout(c, "9s")), "chain-a")
    envelope = parsed(update_envelope(other, signers=[orderer_admin()], sender=org_user(), now=NOW))
    forged = resigned(envelope, wanted)
    with pytest.raises(InvalidUpdate, match="is not met"):
        propose(config, forged)


def resigned(envelope, wanted):
    """Return `envelope` with another `ConfigUpdate` under the same signatures."""
    payload = Payload.FromString(envelope.payload)
    signed = ConfigUpdateEnvelope.FromString(payload.data)
    signed.config_update = canonical(wanted)
    payload.data = canonical(signed)
    return Envelope(payload=canonical(payload), signature=envelope.signature)


def by_hand(read, write):
    made = ConfigUpdate(channel_id="chain-a", read_set=read, write_set=write)
    return parsed(
        update_envelope(made, signers=[orderer_admin(), org_admin()], sender=org_user(), now=NOW)
    )


def orderer_values(**values):
    """A config tree with values of the orderer group: name=(version, bytes)."""
    group = ConfigGroup()
    for name, (version, raw) in values.items():
        value = group.groups["Orderer"].values[name]
        value.version, value.value, value.mod_policy = version, raw, "Admins"
    return group


SIZE = canonical(BatchSize(max_message_count=9, absolute_max_bytes=9, preferred_max_bytes=9))
BY_HAND = {
    "empty": (ConfigGroup(), ConfigGroup(), "changes nothing"),
    "read set and write set alike": (
        orderer_values(BatchSize=(0, b"")), orderer_values(BatchSize=(0, SIZE)), "changes nothing"
    ),
    "a silent change at the same version": (
        ConfigGroup(), orderer_values(BatchSize=(0, SIZE)), "attempt|sets .* version 0"
    ),
    "a version skipped": (
        ConfigGroup(), orderer_values(BatchSize=(2, SIZE)), "to version 2, but it is at version 0"
    ),
    "a new element at version 1": (
        ConfigGroup(), orderer_values(KafkaBrokers=(1, b"")), "to version 1, but it does not exist"
    ),
    "a read set that names what is not there": (
        orderer_values(KafkaBrokers=(0, b"")), orderer_values(BatchSize=(1, SIZE)), "the read set"
    ),
    "a read set at a version to come": (
        orderer_values(BatchTimeout=(1, b"")), orderer_values(BatchSize=(1, SIZE)), "requires"
    ),
    "an element that no group takes in": (
        ConfigGroup(version=0), orderer_values(KafkaBrokers=(0, b"")), "no effect"
    ),
    "a name with an illegal letter": (
        ConfigGroup(), orderer_values(Batch_Size=(0, SIZE)), "illegal characters"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_an_update_that_breaks_a_rule_of_versions_is_refused(config, case):
    read, write, sentence = BY_HAND[case]
    write = ConfigGroup.FromString(write.SerializeToString())
    if case != "empty":  # the groups on the way are read, not written
        read = ConfigGroup.FromString(read.SerializeToString())
        read.groups.get_or_create("Orderer")
    with pytest.raises(InvalidUpdate, match=sentence) as error:
        propose(config, by_hand(read, write))
    assert_one_sentence(error.value)


def test_an_element_without_a_mod_policy_is_refused(config):
    write = orderer_values(BatchSize=(1, SIZE))
    for wrong in ("", "a//b", "/", "ä", ".."):
        write.groups["Orderer"].values["BatchSize"].mod_policy = wrong
        read = ConfigGroup()
        read.groups.get_or_create("Orderer")
        with pytest.raises(InvalidUpdate, match="mod_policy"):
            propose(config, by_hand(read, write))


def test_what_has_a_mod_policy_that_is_no_policy_can_never_change(config):
    def change(new):
        group_at(new, "Orderer").values["BatchSize"].mod_policy = "Nobody"

    following = config.after(config_envelope(config, update(config, change)))
    changing = update(following, lambda c: set_batch(c, max_message_count=3))
    with pytest.raises(InvalidUpdate, match="/Channel/Orderer/Nobody is not met"):
        propose(following, parsed(changing))


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(),
        Envelope(payload=b"\xff"),
        Envelope.FromString(
            signed_envelope(HeaderType.CONFIG, "chain-a", b"", signer=orderer(), now=NOW)
        ),
        Envelope.FromString(
            signed_envelope(HeaderType.CONFIG_UPDATE, "chain-a", b"\xff", signer=orderer(), now=NOW)
        ),
    ],
    ids=["empty", "garbage", "of another type", "garbage inside"],
)
def test_what_is_no_config_update_is_refused(config, envelope):
    with pytest.raises(InvalidUpdate, match="cannot be read") as error:
        propose(config, envelope)
    assert_one_sentence(error.value)


def sent_by_a_user(**fields):
    data = canonical(ConfigUpdateEnvelope(**fields))
    return signed_envelope(HeaderType.CONFIG_UPDATE, "chain-a", data, signer=org_user(), now=NOW)


def nested(depth):
    """Groups within groups: field 2 of a group is an entry of a map, whose value is field 2."""
    raw = b""
    for _ in range(2 * depth):
        raw = message_field(2, raw)
    return message_field(3, raw)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"config_update": b"\x1a\0" * 20_001}, "more fields"),
        ({"config_update": message_field(3, b"\x1a\0" * 20_000)}, "more fields"),
        ({"config_update": message_field(3, message_field(2, b"\x12\0" * 20_000))}, "more fields"),
        ({"config_update": message_field(2, b"\x08\1" * 20_000)}, "more fields"),
        ({"config_update": nested(9_000)}, "cannot be decoded"),
        ({"config_update": b"\x0b" * 20_001}, "wire type"),
        ({"signatures": [{}] * 1001}, "more fields"),
    ],
    ids=["sets", "values", "groups", "unneeded", "depth", "wire groups", "signatures"],
)
def test_an_update_that_would_take_long_is_refused_before_it_is_read(config, fields, why):
    """Nobody's right is needed to have it read where a system channel makes channels."""
    with pytest.raises(InvalidUpdate, match=why):
        propose(config, parsed(sent_by_a_user(**fields)))


def test_each_signature_is_verified_once_however_many_policies_it_could_meet(config, monkeypatch):
    def both(new):
        for section, change in (("Orderer", set_timeout), ("Application", None)):
            group = group_at(new, section)
            change(new, "7s") if change else group.policies["Admins"].SetInParent()
            group.policies["New"].CopyFrom(group.policies["Admins"])

    verified = []
    real = Identity.verify
    monkeypatch.setattr(Identity, "verify", lambda *of: (verified.append(of[1:]), real(*of))[1])
    propose(config, parsed(update(config, both, signers=[orderer_admin(), org_admin()])))
    assert len(verified) == len(set(verified)) == 2


def test_an_update_to_a_config_that_cannot_be_is_refused(config):
    raw = update(config, lambda c: set_batch(c, preferred_max_bytes=11 << 20))
    with pytest.raises(InvalidUpdate, match="greater than"):
        config.proposed(parsed(raw))
    unsupported = update(config, lambda c: set_capabilities(c, "V2_0", "V9_9", group=("Orderer",)))
    with pytest.raises(InvalidUpdate, match="V9_9"):
        config.proposed(parsed(unsupported))


def test_an_update_may_not_change_an_msp_id_or_drop_a_section(config):
    both = [orderer_admin(), org_admin()]

    def other_msp(new):
        group = new.channel_group.groups["Application"].groups["Org1MSP"]
        value = organisation(root(), "Other").values["MSP"].value
        group.values["MSP"].value = value

    with pytest.raises(InvalidUpdate, match="changes the MSP ID"):
        config.proposed(parsed(update(config, other_msp, signers=both)))
    dropped = update(config, drop(kind="groups", name="Application"), signers=both)
    with pytest.raises(InvalidUpdate, match="drops the section Application"):
        config.proposed(parsed(dropped))

    def consortiums(new):
        new.channel_group.groups["Consortiums"].mod_policy = "Admins"

    added = update(config, consortiums, signers=both)
    with pytest.raises(InvalidUpdate, match="adds consortiums"):
        config.proposed(parsed(added))


def test_the_consensus_type_needs_a_capability_to_change(config):
    old = ChannelConfig("chain-a", changed(config, without_migration))
    raw = update(old, lambda c: set_consensus(c, "etcdraft"))
    with pytest.raises(InvalidUpdate, match="from solo to etcdraft"):
        old.proposed(parsed(raw))


def without_migration(config):
    set_capabilities(config, "V1_1")
    del group_at(config, "Orderer", "OrdererOrg").values["Endpoints"]


# Configs read from a block.


@pytest.mark.parametrize(("named", "taken"), [("V1_4_2", False), ("V1_4_3", True)])
def test_an_administrator_by_unit_needs_the_capability_that_makes_one(config, named, taken):
    older = changed(config, lambda new: set_capabilities(new, named))
    start = ChannelConfig(config.channel_id, older)
    change = drop("Application", "Org1MSP", kind="policies", name="Endorsement")
    raw = update(start, change, signers=[org_admin()])
    with contextlib.nullcontext() if taken else pytest.raises(InvalidUpdate, match="is not met"):
        start.proposed(parsed(raw))


def test_a_config_envelope_is_not_taken_for_another_channels(config):
    raw = update(config, lambda c: set_timeout(c, "1s"))
    proposed, _ = config.proposed(parsed(raw))
    other = signed_envelope(
        HeaderType.CONFIG, "chain-b", canonical(proposed), signer=orderer(), now=NOW
    )
    with pytest.raises(Invalid, match="'chain-b' in channel 'chain-a'"):
        config.after(other)


def test_a_config_that_its_own_update_does_not_lead_to_changes_nothing(config):
    raw = update(config, lambda c: set_timeout(c, "1s"))
    proposed, _ = config.proposed(parsed(raw))
    set_batch(proposed.config, max_message_count=1)
    forged = signed_envelope(
        HeaderType.CONFIG, "chain-a", canonical(proposed), signer=orderer(), now=NOW
    )
    with pytest.raises(Invalid, match="does not lead to its config"):
        config.after(forged)


def test_a_config_without_an_update_changes_nothing(config):
    bare = ConfigEnvelope(config=Config(sequence=1, channel_group=config.config.channel_group))
    with pytest.raises(InvalidUpdate):
        validate(config, bare)
    with pytest.raises(InvalidUpdate, match="no config"):
        validate(config, ConfigEnvelope())


@pytest.mark.parametrize("sequence", [0, 2, 7])
def test_a_config_of_another_sequence_does_not_follow(config, sequence):
    proposed, _ = config.proposed(parsed(update(config, lambda c: set_timeout(c, "1s"))))
    proposed.config.sequence = sequence
    with pytest.raises(InvalidUpdate, match=f"sequence {sequence} does not follow"):
        validate(config, proposed)


def test_a_config_envelopes_bytes_do_not_depend_on_how_maps_were_filled(config):
    raw = update(config, lambda c: set_timeout(c, "1s"))
    once = canonical(propose(config, parsed(raw)))
    shuffled = Config(sequence=0, channel_group=reversed_maps(config.config.channel_group))
    again = canonical(propose(ChannelConfig("chain-a", shuffled), parsed(raw)))
    assert once == again


def reversed_maps(group):
    made = ConfigGroup(version=group.version, mod_policy=group.mod_policy)
    for kind in ("values", "policies"):
        for name in sorted(getattr(group, kind), reverse=True):
            getattr(made, kind)[name].CopyFrom(getattr(group, kind)[name])
    for name in sorted(group.groups, reverse=True):
        made.groups[name].CopyFrom(reversed_maps(group.groups[name]))
    return made


@pytest.mark.parametrize("with_capabilities", [True, False])
def test_what_has_no_mod_policy_gets_that_of_admins_where_there_are_capabilities(
    config, with_capabilities
):
    def bare(new):
        orderers = group_at(new, "Orderer")
        orderers.mod_policy = ""
        orderers.values["BatchTimeout"].mod_policy = ""
        group_at(new, "Application").policies["Readers"].mod_policy = ""

    start = config if with_capabilities else of_old_capabilities(config)
    old = ChannelConfig(config.channel_id, changed(start, bare))
    raw = update(old, lambda new: set_batch(new, max_message_count=7))
    _, following = old.proposed(parsed(raw))
    orderers, members = (group_at(following.config, name) for name in ("Orderer", "Application"))
    filled = "Admins" if with_capabilities else ""
    assert orderers.mod_policy == filled
    assert orderers.values["BatchTimeout"].mod_policy == filled
    assert members.policies["Readers"].mod_policy == filled
