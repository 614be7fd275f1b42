"""Computed updates: applied, they lead to the config that was given."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ordering_osn.config.configtx import InvalidUpdate, elements, propose, validate
from ordering_osn.protos import (
    Config,
    ConfigGroup,
)
from tests.ordering_osn.helpers.compute_update import (
    NothingChanged,
    make_update,
    update_envelope,
)
from tests.ordering_osn.helpers.configs import (
    NOW,
    orderer,
    parsed,
)

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.dictionaries(NAMES, st.tuples(st.binary(max_size=2), st.sampled_from("pq")), max_size=3)
TREES = st.recursive(
    st.tuples(VALUES, st.sampled_from("pq"), st.just({})),
    lambda inner: st.tuples(
        VALUES, st.sampled_from("pq"), st.dictionaries(NAMES, inner, max_size=2)
    ),
    max_leaves=4,
)


def tree(described):
    values, mod_policy, groups = described
    group = ConfigGroup(mod_policy=mod_policy)
    for name, (raw, governed_by) in values.items():
        group.values[name].value, group.values[name].mod_policy = raw, governed_by
    for name, inner in groups.items():
        group.groups[name].CopyFrom(tree(inner))
    return group


class Anything:
    """A config of any shape that anyone may change."""

    channel_id = "chain-a"

    def __init__(self, group, sequence=0):
        self.config = Config(sequence=sequence, channel_group=group)
        self.policies = self

    def signers(self, signed):
        return signed

    def check(self, _path, _signers):
        pass


def without_versions(group):
    return {
        key: (element.mod_policy, getattr(element, "value", b""))
        for key, element in elements(group).items()
    }


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(TREES, min_size=2, max_size=4))
def test_an_update_that_was_made_leads_to_the_config_that_was_wanted(shapes):
    current = Anything(tree(shapes[0]))
    for shape in shapes[1:]:
        wanted = Config(channel_group=tree(shape))
        if without_versions(wanted.channel_group) == without_versions(current.config.channel_group):
            with pytest.raises(NothingChanged):
                make_update(current.config, wanted, "chain-a")
            continue
        made = make_update(current.config, wanted, "chain-a")
        raw = update_envelope(made, signers=[], sender=orderer(), now=NOW)
        proposed = propose(current, parsed(raw))
        following = proposed.config
        assert without_versions(following.channel_group) == without_versions(wanted.channel_group)
        validate(current, proposed)
        current = Anything(following.channel_group, following.sequence)
        with pytest.raises(InvalidUpdate):
            propose(current, parsed(raw))
