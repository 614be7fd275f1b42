"""Random channel configs and updates, from the usual channel's config by random changes."""

from datetime import UTC, datetime

from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig
from ordering_osn.protos import (
    ACLs,
    BlockDataHashingStructure,
    Consortium,
    HashingAlgorithm,
    KafkaBrokers,
    OrdererAddresses,
)
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.compute_update import (
    NothingChanged,
    make_update,
    set_value,
    update_envelope,
)
from tests.ordering_osn.helpers.pki import by, meta_policy, out_of, role, root, signature_policy
from tests.ordering_osn.judge.organisations import Organisations

CAPABILITIES = ("V1_1", "V1_3", "V1_4_2", "V1_4_3", "V2_0", "V2_5", "V9", "a")
TIMEOUTS = ("2s", "1m30s", "0", "-1s", "1.5h", ".5s", "1", "s", "1us", "1µs", "9999999h", "")
WORDS = ("", "a", "Admins", "..", "a/b", "a b", "ä", "Readers", "x" * 250)
MOD_POLICIES = ("", "Admins", "/Channel/Admins", "/", "a//b", "nobody", "../Admins", "/Channel/ä")
UNKNOWN = b"\xa2\x06\x03abc"  # field 100


class Configs:
    """Changes of a config from one random source."""

    def __init__(self, random):
        self.random = random
        self.organisations = Organisations(random)
        self.base = configs.genesis()
        older = configs.changed(self.base, lambda new: configs.set_capabilities(new, "V1_4_2"))
        self.older = ChannelConfig("chain-a", older)
        self.spare = root("spare")

    def group(self, config):
        """A random group of the tree."""
        groups = [config.channel_group]
        for group in groups:
            groups += [group.groups[name] for name in sorted(group.groups)]
        return self.random.choice(groups)

    def policy(self):
        random = self.random
        principals = [role(random.randrange(5), random.choice(["Org1MSP", "nobody"]))]
        rule = out_of(random.randrange(-1, 3), *[by(random.randrange(-1, 3))] * random.randrange(3))
        return random.choice(
            [
                signature_policy(by(0), *principals),
                signature_policy(rule, *principals, version=random.choice([0, 0, 1])),
                meta_policy(random.randrange(4), random.choice(WORDS)),
            ]
        )

    def organisation(self, sections, name):
        """Put an organisation, which may be a strange one, into one of the sections."""
        made = configs.organisation(self.spare, name)
        if self.random.random() < 0.5:
            made.values["MSP"].value = self.organisations.definition()
        self.random.choice(sections).groups[name].CopyFrom(made)

    def sizes(self, config):
        configs.set_batch(
            config,
            max_message_count=self.random.choice([0, 1, 10]),
            preferred_max_bytes=self.random.choice([0, 1, 2**20, 2**32 - 1]),
        )

    def change(self, config):
        """Change a random thing of a config."""
        random, group = self.random, self.group(config)
        channel = config.channel_group
        orderers = channel.groups["Orderer"]
        words = random.choice(WORDS)
        members = channel.groups.get("Application", channel)
        acls = ACLs()
        acls.acls[words].policy_ref = words

        def values():
            if group.values:
                value = group.values[random.choice(sorted(group.values))]
                value.value = random.choice([b"", b"\xff", value.value + UNKNOWN, value.value[:-1]])

        def removed(parts):
            if parts:
                del parts[random.choice(sorted(parts))]

        def mod_policies():
            parts = [group, *group.values.values(), *group.policies.values()]
            random.choice(parts).mod_policy = random.choice(MOD_POLICIES)

        def capabilities():
            named = configs.capabilities(*random.sample(CAPABILITIES, random.randrange(3)))
            set_value(random.choice([channel, orderers, members]), "Capabilities", named)

        random.choice(
            [
                values,
                lambda: removed(group.values),
                lambda: removed(group.groups),
                lambda: removed(group.policies),
                mod_policies,
                capabilities,
                lambda: self.organisation(
                    [orderers, members], random.choice(["Org1MSP", "Org9MSP", words])
                ),
                lambda: self.sizes(config),
                lambda: configs.set_timeout(config, random.choice(TIMEOUTS)),
                lambda: configs.set_policy(group, words, self.policy()),
                lambda: configs.set_policy(group, "Readers", self.policy()),
                lambda: set_value(group, words, ACLs()),
                lambda: set_value(members, "ACLs", acls),
                lambda: set_value(channel, "HashingAlgorithm", HashingAlgorithm(name=words)),
                lambda: set_value(channel, "Consortium", Consortium(name=words)),
                lambda: set_value(
                    channel, "BlockDataHashingStructure", BlockDataHashingStructure(width=7)
                ),
                lambda: set_value(
                    channel, "OrdererAddresses", OrdererAddresses(addresses=[words] * 2)
                ),
                lambda: set_value(
                    orderers, "KafkaBrokers", KafkaBrokers(brokers=[words + ":9092", "a:99999"])
                ),
                lambda: configs.set_consensus(config, words, state=random.randrange(3)),
                lambda: group.groups.get_or_create(words),
                lambda: group.MergeFromString(UNKNOWN),
            ]
        )()

    def changed(self, config, least=0):
        new = configs.changed(config, lambda _: None)
        for _ in range(self.random.choice([least, 1, 1, 2])):
            self.change(new)
        return new

    def update(self):
        """A config, and a CONFIG_UPDATE envelope for it; None where nothing changed."""
        random = self.random
        start = random.choice([self.base, self.base, self.older])
        if random.random() < 0.4:
            try:
                start = ChannelConfig(start.channel_id, self.changed(start.config))
            except InvalidConfig:
                return None
        try:
            made = make_update(start.config, self.changed(start.config, 1), start.channel_id)
        except NothingChanged:
            return None
        groups = [made.write_set, made.read_set]
        for group in groups:
            groups += [group.groups[name] for name in sorted(group.groups)]
        for _ in range(random.choice([0, 0, 0, 1, 2])):
            group = random.choice(groups)
            parts = [group, *group.values.values(), *group.policies.values()]
            part = random.choice(parts)
            random.choice(
                [
                    lambda part=part: part.MergeFromString(UNKNOWN),
                    lambda part=part: setattr(part, "version", random.randrange(3)),
                    lambda part=part: setattr(part, "mod_policy", random.choice(MOD_POLICIES)),
                    lambda group=group: group.values[random.choice(WORDS)].SetInParent(),
                    lambda: made.isolated_data.update({"a": b"b"}),
                    lambda: made.MergeFromString(UNKNOWN),
                ]
            )()
        everybody = [configs.orderer_admin(), configs.org_admin(), configs.org_user()]
        signers = everybody[:2] if random.random() < 0.8 else random.sample(everybody, 1)
        now = datetime.now(UTC)
        return start, update_envelope(made, signers=signers, sender=everybody[0], now=now)

    def extremes(self):
        """The config, and CONFIG_UPDATE envelopes for it that random changes hardly give."""

        def policies(count):
            def change(config):
                policies = config.channel_group.groups["Application"].policies
                for number in range(count):
                    policies[f"p{number}"].CopyFrom(policies["Readers"])

            return make_update(start.config, configs.changed(start.config, change), "chain-a")

        start, now = self.base, datetime.now(UTC)
        nothing, unnamed = policies(1), policies(1)
        nothing.write_set.CopyFrom(nothing.read_set)
        unnamed.write_set.groups["Application"].version -= 1
        admins = [configs.orderer_admin(), configs.org_admin()]
        cases = [(nothing, 1), (unnamed, 1), (policies(20_000), 1), (policies(1), 501)]
        for made, times in cases:
            sent = update_envelope(made, signers=admins * times, sender=admins[0], now=now)
            yield start, sent
