"""The transfers between banks, and what a bank reads of them in its own blocks.

A transfer has one part for each of its banks: an ordinary signed envelope whose data is JSON. The
changes of a transfer's parts add up to zero. No chaincode executes: a bank adds up the changes that
stand in its blocks, in their order.

    opening    {"open": 100000}: what a bank holds at first; one in each chain
    part       {"transfer": "t17", "banks": ["bank-a", "bank-b"], "change": -25}

No I/O, no clock.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ordering_osn.chain.envelopes import BadEnvelope, ParsedEnvelope, Signer, signed_envelope
from ordering_osn.protos import HeaderType

OPENING = 100_000  # of each bank; more than a demo's transfers can move
_AMOUNT_MAX = 100
_TRANSACTION = int(HeaderType.ENDORSER_TRANSACTION)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Money that moves between banks: the change of each, which add up to zero."""

    name: str
    changes: Mapping[str, int]

    @property
    def banks(self) -> tuple[str, ...]:
        """The banks, sorted."""
        return tuple(sorted(self.changes))


@dataclass(frozen=True, slots=True)
class Movement:
    """What one envelope says: a part of a transfer, or a bank's opening (without `banks`)."""

    transfer: str
    banks: tuple[str, ...]
    change: int


def transfer(seed: int, number: int, sets: Sequence[Sequence[str]]) -> Transfer:
    """Make transfer number `number` of a run: the same arguments give the same transfer.

    One bank of a random set pays a random amount to each of the others.
    """
    drawn = hashlib.sha256(f"{seed} {number}".encode()).digest()
    numbers = [int.from_bytes(drawn[n : n + 2], "big") for n in range(0, len(drawn), 2)]
    banks = sets[numbers[0] % len(sets)]
    payer = banks[numbers[1] % len(banks)]
    amounts = (1 + each % _AMOUNT_MAX for each in itertools.cycle(numbers[2:]))
    changes = {bank: amount for bank, amount in zip(banks, amounts, strict=False) if bank != payer}
    changes[payer] = -sum(changes.values())
    return Transfer(f"t{number}", changes)


def envelopes(made: Transfer, *, signer: Signer, now: datetime) -> dict[str, bytes]:
    """Make the envelope of each part, by bank in the order of their names."""
    return {
        bank: _envelope(
            bank,
            {"transfer": made.name, "banks": made.banks, "change": made.changes[bank]},
            signer,
            now,
        )
        for bank in made.banks
    }


def opening(bank: str, *, signer: Signer, now: datetime) -> bytes:
    """Make the envelope that says what a bank holds at first."""
    return _envelope(bank, {"open": OPENING}, signer, now)


def _envelope(bank: str, data: Mapping[str, object], signer: Signer, now: datetime) -> bytes:
    raw = json.dumps(data, separators=(",", ":")).encode()
    return signed_envelope(_TRANSACTION, bank, raw, signer=signer, now=now)


def read_movement(raw: bytes) -> Movement | None:
    """Read an envelope of this module; None for any other, such as a config."""
    envelope = ParsedEnvelope(raw)
    try:
        if envelope.header.type != _TRANSACTION:
            return None
        data = json.loads(envelope.payload.data)
        if "open" in data:
            return Movement("opening", (), int(data["open"]))
        return Movement(str(data["transfer"]), tuple(data["banks"]), int(data["change"]))
    except (BadEnvelope, ValueError, TypeError, KeyError):
        return None
