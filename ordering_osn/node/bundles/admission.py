"""Decides which bundles a node takes in: the filters of each chain, for its part and the submitter.

All parts are judged before anything is appended. Chains are judged in their order, and the first
refusal counts. Its status and its chain go into the answer. No I/O, no clock, no waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from ordering_osn.api.channels import Refused
from ordering_osn.chain.bundles.bundle import BadBundle, Bundle, check_signature, read_bundle
from ordering_osn.chain.envelopes import ParsedEnvelope
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.policies import SignedData
from ordering_osn.identity import Verification
from ordering_osn.node.filters import admit_normal, check_writer


def read_signed(
    raw: bytes, judge: Callable[[Sequence[str], SignedData], None] = lambda *_: None
) -> tuple[Bundle, Verification]:
    """Read a bundle that anybody sent; raises `Refused` 400, 403 or 413.

    Afterwards its submitter has signed it, as it was verified. Which rights he has, `admit` says;
    `judge`, called with the chains BEFORE the envelopes are looked at, may refuse a stranger.
    """
    verified: list[Verification] = []

    def first(chains: tuple[str, ...], signed: tuple[bytes, bytes, bytes]) -> None:
        verified.append(check_signature(*signed))
        judge(chains, SignedData(*signed, verified=set(verified)))

    try:
        bundle = read_bundle(raw, first=first)
    except BadBundle as error:
        raise Refused(error.status, error.info, error.chain) from error
    return bundle, verified[0]


def refuse_strangers(
    configs: Mapping[str, ChannelConfig], signed: SignedData, *, now: datetime
) -> None:
    """Raise `Refused` for a submitter who may write in none of these chains, by name."""
    refusals = []
    for chain, config in configs.items():
        try:
            _check_submitter(chain, config, signed, now)
        except Refused as refusal:
            refusals.append(refusal)
        else:
            return
    if refusals:
        raise refusals[0]


def _check_submitter(chain: str, config: ChannelConfig, signed: SignedData, now: datetime) -> None:
    try:
        check_writer(config, signed, now=now)
    except Refused as refusal:
        info = f"the bundle's submitter, in chain {chain!r}: {refusal.info}"
        raise Refused(refusal.status, info, chain) from refusal


def admit(
    bundle: Bundle,
    configs: Sequence[ChannelConfig],
    *,
    now: datetime,
    verified: Verification | None = None,
) -> tuple[int, ...]:
    """Judge a bundle by the config of each of its chains, in their order; give its stamps.

    `verified`: as whom the submitter's signature was verified. It is verified once for all chains.
    Raises `Refused` with the status and the chain of the first refusal: the part must pass
    all filters of its chain, and the submitter must satisfy the chain's Writers.
    """
    signed = SignedData(*bundle.signed, verified=set() if verified is None else {verified})
    stamps = []
    for part, config in zip(bundle.parts, configs, strict=True):
        try:
            stamps.append(admit_normal(config, ParsedEnvelope(part.envelope), now=now))
        except Refused as refusal:
            info = f"the part for chain {part.chain!r}: {refusal.info}"
            raise Refused(refusal.status, info, part.chain) from refusal
        _check_submitter(part.chain, config, signed, now)
    return tuple(stamps)
