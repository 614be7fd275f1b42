"""Channels created through a system channel: which, for whom, and how many."""

import pytest

from ordering_osn.api.channels import Refused
from ordering_osn.chain.envelopes import canonical
from ordering_osn.config.channel_config import ChannelConfig, config_of
from ordering_osn.config.channel_creation import created_channel
from ordering_osn.protos import ChannelHeader, Envelope, HeaderType, Payload
from tests.ordering_osn.helpers.compute_update import group_at, make_creation, update_envelope
from tests.ordering_osn.helpers.configs import (
    NOW,
    application_policies,
    changed,
    creation,
    genesis,
    in_maintenance,
    orderer,
    orderer_admin,
    org_admin,
    org_user,
    parsed,
    set_batch,
    set_policy,
    set_timeout,
    system_channel,
    transaction,
    update,
)
from tests.ordering_osn.helpers.filters import admit_creation, admit_normal, admit_update
from tests.ordering_osn.helpers.pki import assert_one_sentence


def test_a_system_channel_makes_a_new_channel_of_its_consortium():
    system = system_channel()
    made, sequence = admit_creation(system, creation(), now=NOW, signer=orderer(), channels=1)
    payload = Payload.FromString(parsed(made).payload)
    header = ChannelHeader.FromString(payload.header.channel_header)
    assert (header.type, header.channel_id) == (HeaderType.ORDERER_TRANSACTION, "system")
    assert sequence == 0
    name, first = created_channel(made)
    new = ChannelConfig.from_envelope(first)
    assert (name, new.channel_id, new.sequence) == ("new-channel", "new-channel", 1)
    assert (new.is_system, sorted(new.organisations)) == (
        False,
        [("Application", "Org1MSP"), ("Orderer", "OrdererOrg")],
    )
    assert new.values["Consortium"].name == "Sample"
    assert new.parameters.messages_max == 10
    # The channel works: its members write, its admins and the orderer's change their parts.
    assert admit_normal(new, transaction("new-channel"), now=NOW) == 1
    later = update(new, lambda c: set_timeout(c, "1s"))
    following = new.after(admit_update(new, later, now=NOW, signer=orderer())[0])
    assert following.sequence == 2
    by_member = update(
        new,
        lambda c: set_policy(
            group_at(c, "Application"), "Writers", application_policies()["Readers"].policy
        ),
        signers=[org_admin()],
        sender=org_admin(),
    )
    assert admit_update(new, by_member, now=NOW, signer=orderer())[1] == 1


def set_application_version(version):
    def change(made):
        made.write_set.groups["Application"].version = version

    return change


def no_application(made):
    del made.write_set.groups["Application"]


def no_consortium(made):
    del made.write_set.values["Consortium"]


def widened(made):
    for number in range(20_000):
        made.read_set.values[f"v{number}"].SetInParent()


CREATIONS = {
    "unknown consortium": ({"consortium": "Other"}, "no consortium 'Other'"),
    "application version 0": ({"change": set_application_version(0)}, "to version 1, not 0"),
    "application version 2": ({"change": set_application_version(2)}, "to version 1, not 2"),
    "no application group": ({"change": no_application}, "no application group"),
    "no consortium named": ({"change": no_consortium}, "names no consortium"),
    "a member from outside": ({"members": ["Org9MSP"]}, "not a member of the consortium"),
    "no members": ({"members": []}, "no members"),
    "signed by nobody": ({"signers": []}, "nobody whom the system channel knows"),
    "huge, and signed by nobody": ({"signers": [], "change": widened}, "nobody whom the system"),
    "huge, and signed by an admin": ({"change": widened}, "more fields than this node reads"),
    "signed by no admin": ({"signers": [org_user()]}, "is not met"),
    "signed by the orderer's admin": ({"signers": [orderer_admin()]}, "is not met"),
    "an illegal name": ({"name": "New_Channel"}, "illegal characters"),
}


@pytest.mark.parametrize("case", CREATIONS)
def test_a_channel_that_may_not_be_made_is_a_bad_request(case):
    named, sentence = CREATIONS[case]
    with pytest.raises(Refused, match=sentence) as caught:
        admit_creation(system_channel(), creation(**named), now=NOW, signer=orderer(), channels=1)
    assert caught.value.status == 400
    assert_one_sentence(caught.value)


def test_header_and_update_of_a_creation_name_one_channel():
    made = make_creation("new-channel", "Sample", ["Org1MSP"], application_policies())
    raw = update_envelope(made, signers=[org_admin()], sender=org_admin(), now=NOW)
    payload = Payload.FromString(parsed(raw).payload)
    header = ChannelHeader.FromString(payload.header.channel_header)
    header.channel_id = "other-channel"
    payload.header.channel_header = canonical(header)
    wrong = canonical(Envelope(payload=canonical(payload)))
    with pytest.raises(Refused, match="names two channels"):
        admit_creation(system_channel(), wrong, now=NOW, signer=orderer(), channels=1)


def test_the_number_of_channels_is_limited_the_system_channel_not_counted():
    system = system_channel(max_channels=2)
    for channels, allowed in ((1, True), (2, True), (3, False)):
        if allowed:
            admit_creation(system, creation(), now=NOW, signer=orderer(), channels=channels)
        else:
            with pytest.raises(Refused, match="maximum number of channels: 2"):
                admit_creation(system, creation(), now=NOW, signer=orderer(), channels=channels)
    admit_creation(system_channel(), creation(), now=NOW, signer=orderer(), channels=999)


def test_a_creation_is_filtered_by_size_with_all_that_is_around_it():
    def limits(new):
        set_batch(new, absolute_max_bytes=5000, preferred_max_bytes=100)

    small = ChannelConfig("system", changed(system_channel(), limits))
    with pytest.raises(Refused, match="exceeds maximum"):
        admit_creation(small, creation(), now=NOW, signer=orderer(), channels=1)


def test_a_creation_of_an_old_client_brings_its_admins_policy_at_version_0():
    def old(made):
        made.write_set.groups["Application"].policies["Admins"].version = 0

    made, _ = admit_creation(
        system_channel(), creation(change=old), now=NOW, signer=orderer(), channels=1
    )
    application = config_of(created_channel(made)[1])[1].config.channel_group.groups["Application"]
    assert application.policies["Admins"].version == 0
    assert "ChannelCreationPolicy" not in application.policies


def test_a_new_channel_starts_at_version_0_however_old_the_system_channel_is():
    system = system_channel()
    raw = update(system, lambda c: set_batch(c, max_message_count=77))
    later = system.after(admit_update(system, raw, now=NOW, signer=orderer())[0])
    made, sequence = admit_creation(later, creation(), now=NOW, signer=orderer(), channels=1)
    new = ChannelConfig.from_envelope(created_channel(made)[1])
    assert (sequence, new.sequence, new.parameters.messages_max) == (1, 1, 77)
    assert new.config.channel_group.groups["Orderer"].values["BatchSize"].version == 0


def test_no_channel_is_made_by_a_channel_that_is_no_system_channel():
    with pytest.raises(Refused, match="no consortium"):
        admit_creation(genesis(), creation(), now=NOW, signer=orderer(), channels=1)


def test_in_maintenance_mode_no_channel_is_made_for_now():
    closed = in_maintenance(system_channel())
    with pytest.raises(Refused, match="maintenance mode") as caught:
        admit_creation(closed, creation(), now=NOW, signer=orderer(), channels=1)
    assert caught.value.status == 503
