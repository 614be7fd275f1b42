"""No config leaves a node that Fabric's own packages refuse: random ones, judged by both."""

import random
import re

import pytest

from ordering_osn.identity import MalformedMsp, Msp
from tests.ordering_osn.judge.organisations import Organisations
from tests.ordering_osn.judge.program import MSP, judged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.needs("go"),
    pytest.mark.timeout(1200),
]

ORGANISATIONS = 1_500
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
    r"more than one chain": "the same CA is listed twice",
    r"no readable certificate": "the other library reads DER more strictly than Go",
    r"its key is of a kind": "Go takes unknown kinds of keys from a CA for TLS",
    r"private key or a reference": "Fabric takes it with the key: then a secret is in the block",
    r"its serial": "zero",
}


def ours(raw):
    """Our verdict: "" where a node takes the definition, else the reason."""
    try:
        Msp(raw)
    except MalformedMsp as error:
        return str(error)
    return ""


def test_no_organisation_is_taken_that_fabric_refuses():
    seed = random.SystemRandom().randrange(2**32)
    made = Organisations(random.Random(seed))
    cases = [made.definition() for _ in range(ORGANISATIONS)]
    verdicts = list(zip(cases, map(ours, cases), judged(MSP, cases), strict=True))
    wrong = [(theirs, raw.hex()) for raw, mine, theirs in verdicts if theirs and not mine]
    assert not wrong, f"seed {seed}: {len(wrong)} taken that Fabric refuses: {wrong[:3]}"
    assert sum(not mine for _raw, mine, _theirs in verdicts) > ORGANISATIONS // 5, seed
    stricter = {mine for _raw, mine, theirs in verdicts if mine and not theirs}
    unknown = [mine for mine in stricter if not any(re.search(known, mine) for known in STRICTER)]
    assert not unknown, f"seed {seed}: we refuse, and Fabric does not: {unknown[:3]}"
