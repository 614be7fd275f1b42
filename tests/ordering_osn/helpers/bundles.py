"""Bundles, markers and records of a set's log, made quickly: signatures are not real here."""

from datetime import UTC, datetime

from ordering_osn.chain.bundles.bundle import Bundle, make_bundle
from ordering_osn.chain.bundles.log_records import (
    BundleRecord,
    ConfigMarker,
    encode_bundle_record,
    encode_config_marker,
)
from ordering_osn.chain.bundles.rule import BundleCounts, BundleRule, BundleVoid, RuleState
from ordering_osn.chain.envelopes import signed_envelope
from ordering_osn.protos import HeaderType

THEN = datetime(2026, 1, 1, tzinfo=UTC)
AB = ("chain-a", "chain-b")


class Scribe:
    """A signer whose nonces count up and whose signatures are not real."""

    def __init__(self, creator: bytes = b"somebody") -> None:
        self.creator = creator
        self._made = 0

    def nonce(self) -> bytes:
        self._made += 1
        return self._made.to_bytes(24, "big")

    def sign(self, message: bytes) -> bytes:
        assert message
        return b"not a signature"


def envelope(chain, data=b"transfer", *, kind=HeaderType.ENDORSER_TRANSACTION, signer=None):
    return signed_envelope(kind, chain, data, signer=signer or Scribe(), now=THEN)


def bundle(chains=AB, *, expiry=0, signer=None, data=b"transfer", nonce=1) -> Bundle:
    scribe = signer or Scribe()
    if signer is None:
        scribe._made = nonce
    parts = {chain: envelope(chain, data, signer=signer) for chain in chains}
    return make_bundle(parts, signer=scribe, expiry=expiry)


def bundle_record(made: Bundle, *stamps: int) -> bytes:
    return encode_bundle_record(BundleRecord(made, stamps or (0,) * len(made.parts)))


def marker(chain, sequence=0, *, block=None) -> bytes:
    return encode_config_marker(
        ConfigMarker(chain, 10 * sequence if block is None else block, sequence)
    )


class Log:
    """The rule over a log of one set; offsets count up from 0 unless given."""

    def __init__(self, chains=AB, *, window_max=4, state=None) -> None:
        self.rule = BundleRule(state or RuleState(tuple(chains), 0, window_max=window_max))
        self.offset = 0

    def step(self, raw, *, offset=None, addressed_to=None):
        if offset is not None:
            self.offset = offset
        chains = self.rule.chains if addressed_to is None else addressed_to
        outcome = self.rule.step(self.offset, raw, chains)
        self.offset += 1
        return outcome

    def introduce(self, sequence=0):
        for chain in self.rule.chains:
            self.step(marker(chain, sequence))

    def fate(self, raw, **place):
        """COUNTS, or the reason and the chain."""
        outcome = self.step(raw, **place)
        if isinstance(outcome, BundleCounts):
            return "COUNTS"
        assert isinstance(outcome, BundleVoid)
        return f"{outcome.reason.name} {outcome.chain}".strip()
