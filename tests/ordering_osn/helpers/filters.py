"""The filters of `ordering_osn.node.filters`, for tests that hold serialized envelopes."""

from ordering_osn.chain.envelopes import ParsedEnvelope
from ordering_osn.node import filters


def route(raw):
    return filters.route(ParsedEnvelope(raw))


def admit_normal(config, raw, *, now):
    return filters.admit_normal(config, ParsedEnvelope(raw), now=now)


def admit_update(config, raw, *, now, signer):
    made = filters.admit_update(config, ParsedEnvelope(raw), now=now, signer=signer)
    return made, config.sequence


def admit_creation(system, raw, *, now, signer, channels):
    envelope = ParsedEnvelope(raw)
    made = filters.admit_creation(system, envelope, now=now, signer=signer, channels=channels)
    return made, system.sequence
