"""The filters of `ordering_osn.node.filters`, for tests that hold serialized envelopes."""

from ordering_osn.chain.envelopes import ParsedEnvelope
from ordering_osn.node import filters


def route(raw):
    return filters.route(ParsedEnvelope(raw))


def admit_normal(config, raw, *, now):
    return filters.admit_normal(config, ParsedEnvelope(raw), now=now)


def admit_update(config, raw, *, now, signer):
    return filters.admit_update(config, ParsedEnvelope(raw), now=now, signer=signer)


def admit_creation(system, raw, *, now, signer, channels):
    return filters.admit_creation(
        system, ParsedEnvelope(raw), now=now, signer=signer, channels=channels
    )
