"""Who may do what: the policies of one channel config, evaluated over signatures.

In: a channel config's root group, its organisations (`Msps`), and signatures. Out: nothing, or
`PolicyNotMet` with one sentence. No clock and no I/O.

    SIGNATURE       n out of these, each a principal or again n out of ...; an identity counts for
                    one principal of an evaluation, the first that it satisfies, in order
    IMPLICIT_META   any, a majority or all of the groups just below meet *their* policy of a name;
                    a group without it does not meet it; where there is no group, it is met

Signatures are checked first, once an identity; what is left decides. So what identities alone
decide is kept, and an evaluation costs little more than the check of its signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from multicast.errors import AmcastError, UsageError
from ordering_osn.identity import BadSignature, Identity, Msps, UntrustedIdentity
from ordering_osn.protos import (
    ConfigGroup,
    DecodeError,
    ImplicitMetaPolicy,
    MSPPrincipal,
    Policy,
    SignaturePolicy,
    SignaturePolicyEnvelope,
)

_OUTCOMES_KEPT_MAX = 4096  # outcomes kept: a policy and the identities that were judged by it
_ROOT = "/Channel"
_SIGNATURES_NAMED_MAX = 3  # signatures that a sentence names at most

# What a policy says of identities: None where they meet it, else why not.
Judge = Callable[[tuple[Identity, ...]], str | None]
# The rule of a signature policy: takes who is still free, gives who is left, None if it fails.
Rule = Callable[[tuple[Identity, ...]], tuple[Identity, ...] | None]


class PolicyNotMet(AmcastError):
    """The signatures do not satisfy the policy; the text says which and why."""


class MalformedPolicy(UsageError):
    """A policy of a channel config cannot be read."""


class SignedData(NamedTuple):
    """One signature over `data`; `creator` is a serialized SerializedIdentity."""

    data: bytes
    creator: bytes
    signature: bytes


def resolve(group_path: str, mod_policy: str) -> str:
    """Give the absolute path of an item's mod_policy.

    `group_path` is the group that holds the item ("/Channel/Application"); for a group itself, its
    own path. An empty mod_policy names no policy: the result is empty.
    """
    if not mod_policy or mod_policy.startswith("/"):
        return mod_policy
    return f"{group_path.rstrip('/')}/{mod_policy}"


class Policies:
    """All policies of one channel config, by absolute path ("/Channel/Application/Writers")."""

    def __init__(self, channel_group: ConfigGroup, msps: Msps) -> None:
        """Read them all; raises `MalformedPolicy` where one is unreadable."""
        self._msps = msps
        self._judges: dict[str, Judge] = {}
        self._read(_ROOT, channel_group)
        self._judged = lru_cache(maxsize=_OUTCOMES_KEPT_MAX)(self._judge)

    def has(self, path: str) -> bool:
        """Whether there is such a policy."""
        return path in self._judges

    def evaluate(self, path: str, signed: Sequence[SignedData]) -> None:
        """Raise `PolicyNotMet` unless the signatures satisfy the policy.

        What is wrong with one signature does not spoil the others; an identity counts once.
        """
        identities: dict[tuple[str, bytes], Identity] = {}
        wrong = []
        for item in signed:
            try:
                identity = self._msps.identity(item.creator)
                if identity.key not in identities:
                    identity.verify(item.data, item.signature)
                    identities[identity.key] = identity
            except (BadSignature, UntrustedIdentity) as error:
                wrong.append(str(error))
        problem = self._judged(path, tuple(identities.values()))
        if problem is not None:
            faults = f" ({_listed(wrong)})" if wrong else ""
            raise PolicyNotMet(f"the policy {path} is not met: {problem}{faults}")

    def _judge(self, path: str, identities: tuple[Identity, ...]) -> str | None:
        if path not in self._judges:
            return "this channel has no such policy"
        problem = self._judges[path](identities)
        if problem is None:
            return None
        if not identities:
            return f"{problem}; no signature counts"
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
            except _Senseless as error:
                raise MalformedPolicy(f"the policy {here} {error}") from error

    def _compiled(self, policy: Policy, below: Sequence[str]) -> Judge:
        if policy.type == Policy.IMPLICIT_META:
            return self._implicit(ImplicitMetaPolicy.FromString(policy.value), below)
        if policy.type == Policy.SIGNATURE:
            return _signature(SignaturePolicyEnvelope.FromString(policy.value))
        raise _Senseless(f"is of the unknown type {policy.type}")

    def _implicit(self, meta: ImplicitMetaPolicy, below: Sequence[str]) -> Judge:
        needed = {
            ImplicitMetaPolicy.ANY: min(1, len(below)),
            ImplicitMetaPolicy.ALL: len(below),
            ImplicitMetaPolicy.MAJORITY: len(below) // 2 + 1 if below else 0,
        }.get(meta.rule)
        if needed is None:
            raise _Senseless(f"has the unknown rule {meta.rule}")
        subs = [f"{path}/{meta.sub_policy}" for path in below]
        judges = [self._judges[sub] for sub in subs if sub in self._judges]

        def judge(identities: tuple[Identity, ...]) -> str | None:
            met = sum(judge(identities) is None for judge in judges)
            if met >= needed:
                return None
            return f"{needed} of {_listed(subs)} must be met, {met} are"

        return judge


class _Senseless(Exception):
    """What is wrong with a policy's definition, as the end of a sentence about it."""


def _signature(envelope: SignaturePolicyEnvelope) -> Judge:
    if envelope.version != 0:
        raise _Senseless(f"is of version {envelope.version}; only version 0 is known")
    rule = _rule(envelope.rule, list(envelope.identities))

    def judge(identities: tuple[Identity, ...]) -> str | None:
        return None if rule(identities) is not None else "the signers are not those it asks for"

    return judge


def _rule(policy: SignaturePolicy, principals: Sequence[MSPPrincipal]) -> Rule:
    kind = policy.WhichOneof("Type")
    if kind == "signed_by":
        if not 0 <= policy.signed_by < len(principals):
            raise _Senseless(f"names principal {policy.signed_by}, and there are {len(principals)}")
        return _signed_by(principals[policy.signed_by])
    if kind == "n_out_of":
        rules = [_rule(inner, principals) for inner in policy.n_out_of.rules]
        return _n_out_of(policy.n_out_of.n, rules)
    raise _Senseless("has an empty rule")


def _signed_by(principal: MSPPrincipal) -> Rule:
    def rule(free: tuple[Identity, ...]) -> tuple[Identity, ...] | None:
        for number, identity in enumerate(free):
            if identity.satisfies(principal):
                return free[:number] + free[number + 1 :]
        return None

    return rule


def _n_out_of(needed: int, rules: Sequence[Rule]) -> Rule:
    # Every rule is tried, also when enough are met, as in Fabric: each takes its identity.
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
