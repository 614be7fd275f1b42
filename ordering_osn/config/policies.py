"""The policies of one channel config: decide whether a set of signatures meets a policy.

`Policies.evaluate` returns, or raises `PolicyNotMet`. No clock and no I/O.

    SIGNATURE       a rule "n out of", nested, over principals; in one evaluation an identity
                    counts for one principal: the first, in order, that it satisfies
    IMPLICIT_META   any, a majority or all of the groups directly below meet *their own* policy of
                    a given name; a group without that policy does not meet it; where there are no
                    groups, the policy is met

Signatures are verified first, one for each identity. The rest of the decision depends on the
identities alone and is cached, so an evaluation costs little more than its signature checks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from multicast.errors import AmcastError, UsageError
from ordering_osn.chain.envelopes import ParsedEnvelope
from ordering_osn.identity import BadSignature, Identity, Msps, UntrustedIdentity, Verification
from ordering_osn.protos import (
    ConfigGroup,
    DecodeError,
    ImplicitMetaPolicy,
    MSPPrincipal,
    Policy,
    SignaturePolicy,
    SignaturePolicyEnvelope,
)

# Cached decisions for each config: a policy with a set of identities, so about one for each client.
# With more clients than that, each signature costs an evaluation of the policy again.
_OUTCOMES_KEPT_MAX = 4096
# Verified in one evaluation: more than the organisations of any channel or the orderers of a block.
# Each costs 0.1 ms; an update of 10 MB could have 10,000, of anybody.
SIGNATURES_MAX = 1000
_ROOT = "/Channel"
# Some seconds of what a node takes in, and 10 MB.
_VERIFIED_MAX = 20_000
_verified: dict[tuple[Verification, bytes, bytes], None] = {}
_SIGNATURES_NAMED_MAX = 3  # in one error message, to keep it one readable sentence

# Decides whether identities meet a policy: None where they do, else the reason.
Judge = Callable[[tuple[Identity, ...]], str | None]
# A rule of a signature policy: takes the identities not counted yet, and returns those left after
# it; None where it is not met.
Rule = Callable[[tuple[Identity, ...]], tuple[Identity, ...] | None]


class PolicyNotMet(AmcastError):
    """The signatures do not meet the policy; the text names the policy and the reason."""


class MalformedPolicy(UsageError):
    """A policy of a channel config is invalid."""


class SignedData(NamedTuple):
    """One signature over `data`; `creator` is a serialized SerializedIdentity."""

    data: bytes
    creator: bytes
    signature: bytes
    verified: set[Verification] | None = None
    """As whom it was verified, where several channels judge the same signature; grows."""

    @classmethod
    def of(cls, envelope: ParsedEnvelope) -> SignedData:
        """Give an envelope's signature over its payload; raises `BadEnvelope`."""
        message = envelope.message
        return cls(message.payload, envelope.signature_header.creator, message.signature)


class Signers(NamedTuple):
    """Who signed, each once, and why other signatures do not count."""

    identities: tuple[Identity, ...]
    wrong: tuple[str, ...]


def resolve(group_path: str, mod_policy: str) -> str:
    """Return the absolute path of an element's mod_policy.

    `group_path` is the path of the group that holds the element ("/Channel/Application"); of a
    group, its own path. For an empty mod_policy, which names no policy, the result is empty.
    """
    if not mod_policy or mod_policy.startswith("/"):
        return mod_policy
    return f"{group_path.rstrip('/')}/{mod_policy}"


class Policies:
    """All policies of one channel config, by absolute path ("/Channel/Application/Writers")."""

    def __init__(self, channel_group: ConfigGroup, msps: Msps) -> None:
        """Read all policies of a config; raises `MalformedPolicy`."""
        self._msps = msps
        self._judges: dict[str, Judge] = {}
        self._read(_ROOT, channel_group)
        self._judged = lru_cache(maxsize=_OUTCOMES_KEPT_MAX)(self._judge)

    def has(self, path: str) -> bool:
        """Whether there is such a policy."""
        return path in self._judges

    def evaluate(self, path: str, signed: Sequence[SignedData]) -> None:
        """Raise `PolicyNotMet` unless the signatures meet the policy at `path`.

        A wrong signature is ignored; an identity counts once.
        """
        self.check(path, self.signers(signed))

    def signers(self, signed: Sequence[SignedData]) -> Signers:
        """Verify signatures once, for the policies of any paths; only the first may be many."""
        identities: dict[tuple[str, bytes], Identity] = {}
        wrong = []
        for item in signed[:SIGNATURES_MAX]:
            try:
                identity = self._msps.identity(item.creator)
                if identity.key not in identities:
                    _verify(item, identity)
                    identities[identity.key] = identity
            except (BadSignature, UntrustedIdentity) as error:
                wrong.append(str(error))
        return Signers(tuple(identities.values()), tuple(wrong))

    def check(self, path: str, signers: Signers) -> None:
        """Raise `PolicyNotMet` unless the signers meet the policy at `path`."""
        problem = self._judged(path, signers.identities)
        if problem is not None:
            faults = f" ({_listed(signers.wrong)})" if signers.wrong else ""
            raise PolicyNotMet(f"the policy {path} is not met: {problem}{faults}")

    def _judge(self, path: str, identities: tuple[Identity, ...]) -> str | None:
        if path not in self._judges:
            return "this channel has no such policy"
        problem = self._judges[path](identities)
        if problem is None:
            return None
        if not identities:
            return f"{problem}; there is no valid signature"
        signers = [
            f"{identity} ({identity.problem})" if identity.problem else str(identity)
            for identity in identities
        ]
        return f"{problem}; signed by {_listed(signers)}"

    def _read(self, path: str, group: ConfigGroup) -> None:
        below = [f"{path}/{name}" for name in sorted(group.groups)]
        for name in sorted(group.groups):
            self._read(f"{path}/{name}", group.groups[name])
        for name in sorted(group.policies):
            here = f"{path}/{name}"
            try:
                self._judges[here] = self._compiled(group.policies[name].policy, below)
            except DecodeError as error:
                raise MalformedPolicy(f"the policy {here} cannot be read") from error
            except _InvalidDefinition as error:
                raise MalformedPolicy(f"the policy {here} {error}") from error

    def _compiled(self, policy: Policy, below: Sequence[str]) -> Judge:
        if policy.type == Policy.IMPLICIT_META:
            return self._implicit(ImplicitMetaPolicy.FromString(policy.value), below)
        if policy.type == Policy.SIGNATURE:
            return _signature(SignaturePolicyEnvelope.FromString(policy.value))
        raise _InvalidDefinition(f"is of the unknown type {policy.type}")

    def _implicit(self, meta: ImplicitMetaPolicy, below: Sequence[str]) -> Judge:
        needed = {
            ImplicitMetaPolicy.ANY: min(1, len(below)),
            ImplicitMetaPolicy.ALL: len(below),
            ImplicitMetaPolicy.MAJORITY: len(below) // 2 + 1 if below else 0,
        }.get(meta.rule)
        if needed is None:
            raise _InvalidDefinition(f"has the unknown rule {meta.rule}")
        subs = [f"{path}/{meta.sub_policy}" for path in below]
        judges = [self._judges[sub] for sub in subs if sub in self._judges]

        def judge(identities: tuple[Identity, ...]) -> str | None:
            met = sum(judge(identities) is None for judge in judges)
            if met >= needed:
                return None
            return f"{needed} of {_listed(subs)} must be met, {met} are"

        return judge


def _verify(signed: SignedData, identity: Identity) -> None:
    """Raise `BadSignature` unless the identity signed, as far as that is not known already."""
    if signed.verified is None:
        # A node verifies what a client sends, and again what it reads back from the log.
        key = (identity.verification, hashlib.sha256(signed.data).digest(), signed.signature)
        if key not in _verified:
            identity.verify(signed.data, signed.signature)
            if len(_verified) >= _VERIFIED_MAX:
                _verified.clear()
            _verified[key] = None
    elif identity.verification not in signed.verified:
        identity.verify(signed.data, signed.signature)
        signed.verified.add(identity.verification)


class _InvalidDefinition(Exception):
    """A policy's definition is invalid; the text completes a sentence about the policy."""


def _signature(envelope: SignaturePolicyEnvelope) -> Judge:
    if envelope.version != 0:
        raise _InvalidDefinition(f"is of version {envelope.version}; only version 0 is known")
    rule = _rule(envelope.rule, list(envelope.identities))

    def judge(identities: tuple[Identity, ...]) -> str | None:
        return None if rule(identities) is not None else "the signers do not satisfy its rule"

    return judge


def _rule(policy: SignaturePolicy, principals: Sequence[MSPPrincipal]) -> Rule:
    kind = policy.WhichOneof("Type")
    if kind == "signed_by":
        if not 0 <= policy.signed_by < len(principals):
            raise _InvalidDefinition(
                f"names principal {policy.signed_by}, but has {len(principals)}"
            )
        return _signed_by(principals[policy.signed_by])
    if kind == "n_out_of":
        rules = [_rule(inner, principals) for inner in policy.n_out_of.rules]
        return _n_out_of(policy.n_out_of.n, rules)
    raise _InvalidDefinition("has an empty rule")


def _signed_by(principal: MSPPrincipal) -> Rule:
    def rule(free: tuple[Identity, ...]) -> tuple[Identity, ...] | None:
        for number, identity in enumerate(free):
            if identity.satisfies(principal):
                return free[:number] + free[number + 1 :]
        return None

    return rule


def _n_out_of(needed: int, rules: Sequence[Rule]) -> Rule:
    # As in Fabric, each rule is tried even when enough are met, and uses up an identity.
    def rule(free: tuple[Identity, ...]) -> tuple[Identity, ...] | None:
        met = 0
        for inner in rules:
            left = inner(free)
            if left is not None:
                met, free = met + 1, left
        return free if met >= needed else None

    return rule


def _listed(what: Sequence[str]) -> str:
    more = len(what) - _SIGNATURES_NAMED_MAX
    return ", ".join(what[:_SIGNATURES_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
