"""No config leaves a node that Fabric's own packages refuse: random ones, judged by both."""

import contextlib
import itertools
import random
import re

import pytest

from ordering_osn.chain.envelopes import canonical
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig
from ordering_osn.config.configtx import InvalidUpdate
from ordering_osn.identity import MalformedMsp, Msp, MspRules, Msps, UntrustedIdentity
from tests.ordering_osn.helpers.configs import parsed
from tests.ordering_osn.helpers.pki import role
from tests.ordering_osn.judge.configs import Configs
from tests.ordering_osn.judge.organisations import Organisations
from tests.ordering_osn.judge.program import CONFIG, MSP, PROPOSAL, ROLE, UPDATE, judged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.needs("go"),
    pytest.mark.timeout(1200),
]

ORGANISATIONS, MEMBERS, CONFIGS, UPDATES = 1_500, 1_000, 300, 300
# Where we refuse what Fabric takes, and why.
STRICTER = {
    r"extension \(2\.5\.29\.(30|33|36|54)\)": "name constraints and policies are not implemented",
    r"alternative name": "only plain names: an odd one could be one that Go does not read",
    r"it has no name": "nobody could be of it",
    r"hash family '": "Fabric finds out with the first signature",
    r"not an elliptic-curve key": "a listed administrator of RSA could never sign",
    r"is neither client nor admin": "see the one before: one whose chain cannot be followed",
    r"its PEM is not": "headers, empty lines, other labels: no tool writes them",
    r"no string that every peer": "T61String and BMPString: units in them are spelled in two ways",
    r"does not certify itself": "an ECDSA signature over SHA-1, SHA-224 or SHA-3 of a root",
    r"no chain of valid CAs": "key usages without any bit; RSA-PSS",
    r"RSA key": "shorter than 1024 bits, or odd numbers: Go only fails when it verifies",
    r"revocation list": "each is read at once; Fabric reads it when it needs it",
    r"no readable certificate": "the other library reads DER more strictly than Go",
    r"its key is of a kind": "Go takes unknown kinds of keys from a CA for TLS",
    r"private key or a reference": "Fabric takes it with the key: then a secret is in the block",
    r"its serial": "zero",
    r"Kafka broker": "checked up to Fabric 2.5, not in the version that judges here",
    r"has no orderer group": "who orders it must find batches and policies there",
    r"requires capabilities": "those that only another version of Fabric knows",
    r"no group names the elements": "Fabric makes a block of the same config, with a new number",
    r"more fields than this node reads": "20,000, or 1,000 signatures: they hold up all clients",
    r"has the unknown rule": "Fabric takes it as met without any signature",
}


def ours(raw):
    """Our verdict: "" where a node takes the definition, after its rules' byte, else the reason."""
    try:
        Msp(raw[1:], MspRules(raw[0]))
    except MalformedMsp as error:
        return str(error)
    return ""


def check_stricter(seed, verdicts):
    """Every reason for which we refuse what Fabric takes is known."""
    stricter = {mine for _raw, mine, theirs in verdicts if mine and not theirs}
    unknown = [mine for mine in stricter if not any(re.search(known, mine) for known in STRICTER)]
    assert not unknown, f"seed {seed}: we refuse, and Fabric does not: {unknown[:3]}"


def test_no_organisation_is_taken_that_fabric_refuses():
    seed = random.SystemRandom().randrange(2**32)
    made = Organisations(random.Random(seed))
    cases = [bytes([made.rules()]) + made.definition() for _ in range(ORGANISATIONS)]
    verdicts = list(zip(cases, map(ours, cases), judged(MSP, cases), strict=True))
    wrong = [(theirs, raw.hex()) for raw, mine, theirs in verdicts if theirs and not mine]
    assert not wrong, f"seed {seed}: {len(wrong)} taken that Fabric refuses: {wrong[:3]}"
    assert sum(not mine for _raw, mine, _theirs in verdicts) > ORGANISATIONS // 5, seed
    check_stricter(seed, verdicts)


def test_a_member_has_the_roles_that_fabric_gives_it():
    seed = random.SystemRandom().randrange(2**32)
    made = Organisations(random.Random(seed))
    cases, verdicts = [], []
    while len(cases) < MEMBERS:
        rules, raw, kind = made.rules(), made.definition(), made.random.randrange(5)
        creator = made.member().creator()
        with contextlib.suppress(MalformedMsp, UntrustedIdentity):
            identity = Msps([Msp(raw, rules)]).identity(creator)
            verdicts.append("" if identity.satisfies(role(kind, "Org1")) else str(identity.problem))
            size = len(raw).to_bytes(4, "big")
            cases.append(bytes([rules, kind]) + size + raw + creator)
    both = list(zip(cases, verdicts, judged(ROLE, cases), strict=True))
    wrong = [(theirs, raw.hex()) for raw, mine, theirs in both if theirs and not mine]
    assert not wrong, f"seed {seed}: {len(wrong)} roles that Fabric does not give: {wrong[:3]}"
    assert sum(not mine for mine in verdicts) > MEMBERS // 10, seed
    check_stricter(seed, both)


def ours_of_config(config):
    """Our verdict of a whole config: "" where a node runs it, else the reason."""
    try:
        ChannelConfig("chain-a", config)
    except InvalidConfig as error:
        return str(error)
    return ""


def test_no_config_is_run_that_fabric_refuses():
    seed = random.SystemRandom().randrange(2**32)
    made = Configs(random.Random(seed))
    cases = [made.changed(made.base.config) for _ in range(CONFIGS)]
    raw = [canonical(case) for case in cases]
    verdicts = list(zip(raw, map(ours_of_config, cases), judged(CONFIG, raw), strict=True))
    wrong = [(theirs, case.hex()) for case, mine, theirs in verdicts if theirs and not mine]
    assert not wrong, f"seed {seed}: {len(wrong)} run that Fabric refuses: {wrong[:3]}"
    assert sum(not mine for _raw, mine, _theirs in verdicts) > CONFIGS // 10, seed
    check_stricter(seed, verdicts)


def test_no_update_becomes_a_block_that_fabric_refuses():
    seed = random.SystemRandom().randrange(2**32)
    made = Configs(random.Random(seed))
    taken, refused, reasons = [], [], []
    pairs = itertools.chain(made.extremes(), iter(made.update, made))  # the latter without end
    for pair in pairs:
        if len(taken) == UPDATES:
            break
        if pair is None:
            continue
        current = canonical(pair[0].config)
        current = len(current).to_bytes(4, "big") + current
        try:
            envelope, _ = pair[0].proposed(parsed(pair[1]))
        except InvalidUpdate as error:
            refused.append(current + pair[1])
            reasons.append(str(error))
        else:
            taken.append(current + canonical(envelope))
    verdicts = zip(taken, judged(UPDATE, taken), strict=True)
    wrong = [(theirs, case.hex()) for case, theirs in verdicts if theirs]
    assert not wrong, f"seed {seed}: {len(wrong)} taken that Fabric refuses: {wrong[:3]}"
    check_stricter(seed, list(zip(refused, reasons, judged(PROPOSAL, refused), strict=True)))
