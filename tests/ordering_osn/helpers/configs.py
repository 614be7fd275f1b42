"""Channel configs and their members: those of bench/osn/fabric, and changed ones."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from bench.osn.transactions import FOLDER as FABRIC
from bench.osn.transactions import read_envelopes
from ordering_osn.chain.envelopes import canonical, signed_envelope
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.identity import SigningIdentity
from ordering_osn.node.filters import ChannelRules
from ordering_osn.protos import (
    BatchSize,
    BatchTimeout,
    Capabilities,
    ChannelRestrictions,
    ConfigGroup,
    ConsensusType,
    Envelope,
    HeaderType,
)
from tests.ordering_osn.helpers.compute_update import (
    copy_of,
    group_at,
    make_creation,
    make_update,
    set_value,
    update_envelope,
)
from tests.ordering_osn.helpers.pki import (
    NODES,
    Certified,
    by,
    meta_policy,
    msp_bytes,
    out_of,
    role,
    root,
    signature_policy,
)

CRYPTO = FABRIC / "crypto"
MAINTENANCE = ConsensusType.STATE_MAINTENANCE
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def block(channel="chain-a"):
    return (FABRIC / f"{channel}.block").read_bytes()


def genesis(channel="chain-a"):
    return ChannelConfig.from_block(block(channel))


@cache
def person(msp_id, path):
    return SigningIdentity.load(CRYPTO / path / "msp", msp_id)


def orderer():
    return person("OrdererMSP", "ordererOrganizations/example.com/orderers/orderer.example.com")


def orderer_admin():
    return person("OrdererMSP", "ordererOrganizations/example.com/users/Admin@example.com")


def org_admin():
    return person("Org1MSP", "peerOrganizations/org1.example.com/users/Admin@org1.example.com")


def org_user():
    return person("Org1MSP", "peerOrganizations/org1.example.com/users/User1@org1.example.com")


@dataclass
class Member:
    """A signer with a certificate made by the test."""

    certified: Certified
    msp_id: str

    @property
    def creator(self):
        return self.certified.creator(self.msp_id)

    def sign(self, message):
        return self.certified.sign(message)

    def nonce(self):
        return b"n" * 24


def real_envelopes(channel="chain-a"):
    return list(read_envelopes(FABRIC / f"{channel}.envelopes"))


def changed(config, change):
    """`config`'s proto, after `change(copy)`."""
    new = copy_of(config.config if isinstance(config, ChannelConfig) else config)
    change(new)
    return new


def set_batch(config, **sizes):
    usual = {
        "max_message_count": 10,
        "absolute_max_bytes": 10 << 20,
        "preferred_max_bytes": 2 << 20,
    }
    set_value(group_at(config, "Orderer"), "BatchSize", BatchSize(**(usual | sizes)))


def set_timeout(config, text):
    set_value(group_at(config, "Orderer"), "BatchTimeout", BatchTimeout(timeout=text))


def set_consensus(config, kind="solo", *, state=ConsensusType.STATE_NORMAL, metadata=b""):
    value = ConsensusType(type=kind, state=state, metadata=metadata)
    set_value(group_at(config, "Orderer"), "ConsensusType", value)


def update(config, change, *, signers=None, sender=None, now=NOW):
    """A CONFIG_UPDATE envelope for this change, by the orderer's admin if nobody else is named."""
    made = make_update(config.config, changed(config, change), config.channel_id)
    signers = [orderer_admin()] if signers is None else signers
    return update_envelope(made, signers=signers, sender=sender or orderer_admin(), now=now)


def parsed(raw):
    return Envelope.FromString(raw)


def set_policy(group, name, policy):
    group.policies[name].mod_policy = "Admins"
    group.policies[name].policy.CopyFrom(policy)


def organisation(authority, msp_id):
    """An organisation's group: its MSP, and the usual policies."""
    group = ConfigGroup(mod_policy="Admins")
    group.values["MSP"].mod_policy = "Admins"
    group.values["MSP"].value = msp_bytes([authority], name=msp_id, nodes=NODES)
    for name, kind in (("Readers", "MEMBER"), ("Writers", "MEMBER"), ("Admins", "ADMIN")):
        set_policy(group, name, signature_policy(out_of(1, by(0)), role(kind, msp_id)))
    return group


def system_channel(*, creators="Admins", max_channels=0):
    """The config of a system channel with one consortium, of Org1; Org1 may create channels."""

    def change(config):
        root = config.channel_group
        member = ConfigGroup()
        member.CopyFrom(root.groups["Application"].groups["Org1MSP"])
        del root.groups["Application"]
        set_value(
            root.groups["Orderer"],
            "ChannelRestrictions",
            ChannelRestrictions(max_count=max_channels),
        )
        consortiums = root.groups["Consortiums"]
        consortiums.mod_policy = "/Channel/Orderer/Admins"
        set_policy(consortiums, "Admins", signature_policy(out_of(0)))
        one = consortiums.groups["Sample"]
        one.mod_policy = "/Channel/Orderer/Admins"
        set_value(one, "ChannelCreationPolicy", meta_policy("ANY", creators))
        one.groups["Org1MSP"].CopyFrom(member)

    return ChannelConfig("system", changed(genesis(), change))


def application_policies():
    """The policies that a new channel's application group is asked for with."""
    return dict(genesis().config.channel_group.groups["Application"].policies)


def capabilities(*names):
    made = Capabilities()
    for name in names:
        made.capabilities.get_or_create(name)
    return made


def set_capabilities(config, *names, group=()):
    set_value(group_at(config, *group), "Capabilities", capabilities(*names))


def drop(*path, kind="values", name):
    def change(config):
        del getattr(group_at(config, *path), kind)[name]

    return change


def transaction(channel="chain-a", *, signer=None, data=b"x", kind=HeaderType.ENDORSER_TRANSACTION):
    return signed_envelope(kind, channel, data, signer=signer or org_user(), now=NOW)


def rules(config, *, clock=lambda: NOW, signer=None, channels=0):
    signing = signer or orderer()
    return ChannelRules(config, signer=lambda: signing, clock=clock, channels=lambda: channels)


def in_maintenance(config):
    new = changed(config, lambda c: set_consensus(c, state=MAINTENANCE))
    return ChannelConfig(config.channel_id, new)


def of_old_capabilities(config):
    """The channel without the capabilities of Fabric 1.1 and later."""

    def change(new):
        del new.channel_group.values["Capabilities"]
        del group_at(new, "Orderer").values["Capabilities"]
        del group_at(new, "Application").values["Capabilities"]
        del group_at(new, "Orderer", "OrdererOrg").values["Endpoints"]

    return ChannelConfig(config.channel_id, changed(config, change))


def creation(name="new-channel", *, members=("Org1MSP",), signers=None, change=lambda _: None,
             consortium="Sample", policies=None):  # fmt: skip
    made = make_creation(name, consortium, members, policies or application_policies())
    change(made)
    return update_envelope(
        made, signers=[org_admin()] if signers is None else signers, sender=org_admin(), now=NOW
    )


def with_signature(raw, signature):
    return canonical(Envelope(payload=parsed(raw).payload, signature=signature))


def unsigned():
    return with_signature(transaction(), b"")


def by_a_stranger():
    return transaction(signer=Member(root().issue("x", units=["client"]), "Org1MSP"))


def with_organisation(config, authority, msp_id="Org2MSP"):
    """The channel with an organisation whose certificates are made in the test (2020 to 2030)."""

    def change(new):
        group_at(new, "Application").groups[msp_id].CopyFrom(organisation(authority, msp_id))

    return ChannelConfig(config.channel_id, changed(config, change))
