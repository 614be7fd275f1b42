"""Accounts that never go below zero, although many clerks withdraw at the same time.

A transfer is one message to the partitions of its two accounts. A clerk knows the balances of its
branch up to a position in the log. It sends a transfer on condition that no debit of the same
account comes between that position and the transfer. If another clerk was faster, the transfer has
no effect anywhere: every reader drops it, and the clerk looks again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

from amcast import (
    Batch,
    Consumer,
    Message,
    MessageID,
    Producer,
    Receipt,
    TimedOut,
    nothing_after,
)

ACCOUNTS = ("P1", "P2", "P3")  # each account is a partition
NESTED_MAX = 100  # brackets of a transfer: how many a parser can nest depends on its stack
AMOUNT_MAX = 1_000_000_000  # balances in Spark have 64 bits
START = 100  # money of each account at first
_POLL_S = 0.5  # one wait; a longer one would only be said later if nothing comes
_POLLS_MAX = 120  # a reader that does not come past its own message within a minute is stuck


def parse(payload: bytes | None) -> tuple[str, str, int] | None:
    """Read a transfer: from, to, amount; None: it is none, and changes nothing at any reader."""
    text = payload or b"null"
    if text.count(b"{") + text.count(b"[") > NESTED_MAX:
        return None
    try:
        document = json.loads(text.decode())
    except ValueError:
        return None
    match document:
        case {"from": str(source), "to": str(target), "amount": int(amount)} if amount is not True:
            known = {source, target} <= set(ACCOUNTS) and source != target
            return (source, target, amount) if known and 0 < amount <= AMOUNT_MAX else None
    return None


def transfers(batches: Iterable[Batch]) -> Iterator[tuple[str, str, int]]:
    """Give the transfers of what was delivered; name other messages on stderr."""
    for batch in batches:
        for record in batch.records:
            transfer = parse(record.value)
            if transfer is not None:
                yield transfer
            else:
                foreign = Message(batch, record).message_id
                sys.stderr.write(f"{foreign} is no transfer, and changes nothing\n")


class BranchBalances:
    """The balances of a branch's accounts, as its consumer delivers the transfers."""

    def __init__(self, consumer: Consumer, accounts: Iterable[str]) -> None:
        self._consumer = consumer
        self.money = dict.fromkeys(sorted(accounts), START)
        self.position = consumer.seen(ACCOUNTS)

    def apply(self, batches: Iterable[Batch]) -> None:
        """Apply transfers, and note the position up to which the balances are known."""
        for source, target, amount in transfers(batches):
            self._add(source, -amount)
            self._add(target, amount)
        self.position = self._consumer.seen(ACCOUNTS)

    def read_past(self, message: MessageID) -> None:
        """Read until everything up to a message is applied."""
        for _ in range(_POLLS_MAX):
            if self.position.next > message.offset:
                return
            self.apply(self._consumer.poll(_POLL_S))
        raise TimedOut(f"the consumer did not come past {message}")

    def _add(self, account: str, amount: int) -> None:
        if account in self.money:  # the other account may belong to another branch
            self.money[account] += amount


class Clerk:
    """Moves money from the accounts of a branch."""

    def __init__(self, producer: Producer, balances: BranchBalances) -> None:
        self._producer = producer
        self.balances = balances

    def transfer(self, source: str, target: str, amount: int) -> bool:
        """Move money; False: the account has too little. Repeats until one of both is true."""
        while True:
            receipt = self.send(source, target, amount)
            if receipt is None:
                return False
            # Also a transfer without effect has its place in the log, behind what prevented it.
            self.balances.read_past(receipt.accepted())
            if receipt.decided().takes_effect:
                return True

    def send(self, source: str, target: str, amount: int) -> Receipt | None:
        """Send a transfer if the account has enough money, as far as this clerk knows."""
        if self.balances.money[source] < amount:
            return None
        debit = {f"debit:{source}"}
        return self._producer.multicast(
            json.dumps({"from": source, "to": target, "amount": amount}).encode(),
            to={source, target},
            tags=debit,
            expect=nothing_after(self.balances.position, tags=debit),
        )
