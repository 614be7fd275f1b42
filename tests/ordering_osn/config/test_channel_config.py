"""Channel configs: which a node may run, and which it refuses."""

import pytest

from ordering_osn.chain.envelopes import signed_envelope
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig, duration_ns
from ordering_osn.config.configtx import InvalidUpdate, check_channel_id
from ordering_osn.protos import (
    BatchSize,
    Block,
    BlockDataHashingStructure,
    HashingAlgorithm,
    HeaderType,
    KafkaBrokers,
    OrdererAddresses,
)
from tests.ordering_osn.helpers.compute_update import group_at, set_value
from tests.ordering_osn.helpers.configs import (
    NOW,
    block,
    changed,
    drop,
    genesis,
    orderer,
    organisation,
    set_batch,
    set_capabilities,
    set_timeout,
    system_channel,
)
from tests.ordering_osn.helpers.pki import assert_one_sentence, root

# The content of a genesis block.


@pytest.mark.parametrize("channel", ["chain-a", "chain-b", "chain-c", "chain-d"])
def test_a_real_genesis_block_gives_its_parameters(channel):
    config = genesis(channel)
    assert config.channel_id == channel
    found = config.parameters
    assert (found.sequence, found.messages_max, found.timeout_s) == (0, 10, 2.0)
    assert (found.bytes_preferred, found.bytes_absolute) == (2 << 20, 10 << 20)
    assert found.resubmission
    assert config.orderer_addresses == ("127.0.0.1:17050",)
    assert config.msps.names == ("OrdererMSP", "Org1MSP")
    assert (config.maintenance, config.max_channels) == (False, 0)
    assert (config.is_system, config.consortiums) == (False, ())


def test_a_system_channel_names_its_consortiums():
    system = system_channel(max_channels=3)
    assert (system.is_system, system.consortiums, system.max_channels) == (True, ("Sample",), 3)


def test_what_is_no_config_block_is_refused():
    real = Block.FromString(block())
    two = Block.FromString(block())
    two.data.data.append(real.data.data[0])
    normal = Block.FromString(block())
    normal.data.data[0] = signed_envelope(
        HeaderType.MESSAGE, "chain-a", b"", signer=orderer(), now=NOW
    )
    for raw in (b"\xff", b"", two.SerializeToString(), normal.SerializeToString()):
        with pytest.raises(InvalidConfig) as error:
            ChannelConfig.from_block(raw)
        assert_one_sentence(error.value)


@pytest.mark.parametrize("name", ["a", "chain-a", "a.b-c.9", "a" * 249])
def test_a_channel_may_be_named(name):
    check_channel_id(name)


@pytest.mark.parametrize(
    "name", ["", "A", "9a", "-a", ".", "a_b", "a+b", "a b", "a\n", "ä", "a" * 250]
)
def test_a_channel_may_not_be_named(name):
    with pytest.raises(InvalidUpdate):
        check_channel_id(name)
    with pytest.raises(InvalidConfig):
        ChannelConfig(name, genesis().config)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2s", 2), ("1m30s", 90), ("500ms", 0.5), ("1.5h", 5400), ("100us", 1e-4), ("7µs", 7e-6),
     ("3ns", 3e-9), (".5s", 0.5), ("+1s", 1), ("-1s", -1), ("0", 0), ("1h1m1s", 3661)],
)  # fmt: skip
def test_a_duration_is_read_as_go_reads_it(text, seconds):
    assert duration_ns(text) == round(seconds * 10**9)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0.1ns", 0),
        ("0.9ns0.9ns", 0),
        ("0.0000000001s", 0),
        ("1.9ns", 1),
        ("1.s", 10**9),
        ("0." + "9" * 400 + "s", 10**9),  # the digits that fit 63 bits count
        ("2562047h47m16.854775807s", 2**63 - 1),
        ("0" * 400 + "1s", 10**9),
    ],
)
def test_each_part_of_a_duration_is_cut_to_whole_nanoseconds(text, nanoseconds):
    assert duration_ns(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    [
        "9999999999999h",
        "99999999999999999999s",
        "2562047h47m16.854775808s",
        "2562047h47m16s1s",
        "9" * 400 + "s",
        "9" * 5000 + "ns",
    ],
)
def test_a_duration_that_go_cannot_hold_is_none(text):
    with pytest.raises(InvalidConfig, match="longer than 292 years"):
        duration_ns(text)


@pytest.mark.parametrize(
    "text", ["", "2", "s", "2 s", "2sec", "1..5s", "- 1s", "--1s", "1s2", "²s"]
)
def test_what_go_takes_for_no_duration_is_none(text):
    with pytest.raises(InvalidConfig):
        duration_ns(text)


def put(*path, name, value):
    return lambda config: set_value(group_at(config, *path), name, value)


def raw_value(*path, name, raw):
    def change(config):
        group_at(config, *path).values[name].value = raw

    return change


def add_group(*path, name):
    return lambda config: group_at(config, *path).groups.get_or_create(name)


def two_versions_of_an_msp(config):
    group = config.channel_group.groups["Application"].groups["Org2MSP"]
    group.CopyFrom(organisation(root(), "Org1MSP"))


def no_msp_id(config):
    group = config.channel_group.groups["Application"].groups["Org2MSP"]
    group.CopyFrom(organisation(root(), ""))


def old_capabilities(config):
    set_capabilities(config, "V1_1")
    del config.channel_group.values["OrdererAddresses"]


def addresses_without_capability(config):
    set_capabilities(config, "V1_1")


def acls_without_capability(config):
    set_capabilities(config, "V1_1", group=("Application",))
    group_at(config, "Application").values["ACLs"].value = b""


def policy_of_unknown_type(config):
    group_at(config, "Orderer").policies["Admins"].policy.type = 77


INVALID = {
    "no messages in a batch": (lambda c: set_batch(c, max_message_count=0), "max_message_count"),
    "no absolute bytes": (lambda c: set_batch(c, absolute_max_bytes=0), "absolute_max_bytes"),
    "no preferred bytes": (lambda c: set_batch(c, preferred_max_bytes=0), "preferred_max_bytes"),
    "preferred over absolute": (
        lambda c: set_batch(c, preferred_max_bytes=11 << 20), "greater than its absolute_max_bytes"
    ),
    "no batch size": (drop("Orderer", name="BatchSize"), "max_message_count"),
    "no batch time-out": (drop("Orderer", name="BatchTimeout"), "not a duration"),
    "time-out of nothing": (lambda c: set_timeout(c, "0s"), "not positive"),
    "time-out below a nanosecond": (lambda c: set_timeout(c, "0.1ns"), "not positive"),
    "time-out beyond Go": (lambda c: set_timeout(c, "9999999999999h"), "longer than 292 years"),
    "time-out below nothing": (lambda c: set_timeout(c, "-1s"), "not positive"),
    "time-out of no unit": (lambda c: set_timeout(c, "2"), "not a duration"),
    "value that cannot be decoded": (
        raw_value("Orderer", name="BatchSize", raw=b"\xff"), "the value BatchSize of Orderer"
    ),
    "value out of place": (put("Orderer", name="Consortium", value=BatchSize()), "Consortium"),
    "value of an unknown name": (put(name="Other", value=BatchSize()), "Other"),
    "broker without a port": (
        put("Orderer", name="KafkaBrokers", value=KafkaBrokers(brokers=["broker"])), "broker"
    ),
    "broker with a port too high": (
        put("Orderer", name="KafkaBrokers", value=KafkaBrokers(brokers=["b:65536"])), "b:65536"
    ),
    "hashing unknown": (put(name="HashingAlgorithm", value=HashingAlgorithm(name="MD5")), "MD5"),
    "hashing missing": (drop(name="HashingAlgorithm"), "hashing algorithm ''"),
    "data hash of a width": (
        put(name="BlockDataHashingStructure", value=BlockDataHashingStructure(width=2)), "width"
    ),
    "no addresses, and none may be with organisations": (old_capabilities, "no orderer addresses"),
    "organisation's addresses without capability": (addresses_without_capability, "addresses"),
    "ACLs without capability": (acls_without_capability, "ACLs"),
    "no orderer group": (drop(kind="groups", name="Orderer"), "no orderer group"),
    "group of an unknown name": (add_group(name="Other"), "Other"),
    "group inside an organisation": (add_group("Orderer", "OrdererOrg", name="x"), "OrdererOrg"),
    "organisation without an MSP": (
        drop("Application", "Org1MSP", name="MSP"), "Org1MSP has no MSP"
    ),
    "MSP that cannot be decoded": (
        raw_value("Application", "Org1MSP", name="MSP", raw=b"\xff"), "MSP"
    ),
    "MSP without an ID": (no_msp_id, "no name"),
    "two MSPs of one ID": (two_versions_of_an_msp, "two different MSPs"),
    "channel capability unknown": (lambda c: set_capabilities(c, "V9_9"), "V9_9"),
    "orderer capability unknown": (
        lambda c: set_capabilities(c, "V9_9", group=("Orderer",)), "V9_9"
    ),
    "application capability that ends peers": (
        lambda c: set_capabilities(c, "V1_4_3", group=("Application",)), "V1_4_3"
    ),
    "channel capabilities without the orderer's": (
        drop("Orderer", name="Capabilities"), "the orderer group has none"
    ),
    "policy of an unknown type": (policy_of_unknown_type, "/Channel/Orderer/Admins"),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_a_config_that_no_node_may_run_is_refused(config, case):
    change, sentence = INVALID[case]
    with pytest.raises(InvalidConfig, match=sentence) as error:
        ChannelConfig("chain-a", changed(config, change))
    assert_one_sentence(error.value)


def test_the_preferred_size_may_be_the_absolute_one(config):
    new = changed(config, lambda c: set_batch(c, preferred_max_bytes=10 << 20))
    found = ChannelConfig("chain-a", new).parameters
    assert found.bytes_preferred == found.bytes_absolute == 10 << 20


def test_one_msp_in_two_groups_is_one(config):
    def change(new):
        new.channel_group.groups["Application"].groups["Also"].CopyFrom(
            new.channel_group.groups["Application"].groups["Org1MSP"]
        )

    both = ChannelConfig("chain-a", changed(config, change))
    assert both.msps.names == ("OrdererMSP", "Org1MSP")


@pytest.mark.parametrize(
    ("names", "resubmission", "migration"),
    [((), False, False), (("V1_1",), True, False), (("V1_4_2",), True, True),
     (("V2_0",), True, True)],
)  # fmt: skip
def test_capabilities_switch_behaviour_on(config, names, resubmission, migration):
    new = changed(config, lambda c: set_capabilities(c, *names, group=("Orderer",)))
    found = ChannelConfig("chain-a", new)
    assert found.parameters.resubmission is resubmission
    assert found.capabilities.consensus_type_migration is migration


def test_addresses_are_the_channels_then_the_organisations(config):
    def change(new):
        set_value(group_at(new), "OrdererAddresses", OrdererAddresses(addresses=["a:1", "b:2"]))
        endpoints = OrdererAddresses(addresses=["b:2", "c:3"])
        set_value(group_at(new, "Orderer", "OrdererOrg"), "Endpoints", endpoints)

    found = ChannelConfig("chain-a", changed(config, change))
    assert found.orderer_addresses == ("a:1", "b:2", "c:3")
