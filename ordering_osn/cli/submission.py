"""What `amcast osn broadcast` does: sends envelopes, and with `--wait` prints their receipts.

    sent          handed to the node; its answer is due
    unconfirmed   accepted, and its receipt is not printed yet
    confirmed     in a block: its receipt is printed

Invariant: confirmed <= accepted <= sent; unconfirmed <= `_UNCONFIRMED_MAX`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import typer

from multicast.errors import AmcastError, TimedOut
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.api.receipt_request import receipt_envelope
from ordering_osn.chain.transactions import Malformed, channel_header, transaction_id
from ordering_osn.cli.length_prefixed import frames_as_they_come
from ordering_osn.identity import SigningIdentity

# The node ends a wait for a receipt itself. The client gives its answer so much longer to arrive;
# with ten times less a busy node's "not yet" would be reported as a node that does not answer.
_ANSWER_S = 5.0
# How many accepted envelopes may wait for their receipts before no more are sent. A node gives
# receipts for the newest 100,000 transactions of a chain, those of other clients among them; with
# ten times less, large blocks would wait for their batch time-out.
_UNCONFIRMED_MAX = 10_000


class EnvelopeRefused(AmcastError):
    """A node refused an envelope or a receipt; the text has its status and the reason."""


class Submission:
    """One run of the command; `run` it once.

    `asker` signs the requests for receipts; without one there are none. `timeout_s` is how long an
    answer may take while an envelope waits for one, and how long a transaction may take into a
    block. A pipe may pause for longer.
    """

    def __init__(
        self,
        client: NodeClient,
        file: Path | None,
        *,
        asker: SigningIdentity | None,
        tls_hash: bytes,
        timeout_s: float,
    ) -> None:
        self._client, self._file = client, file
        self._asker, self._tls_hash = asker, tls_hash
        self._timeout_s = timeout_s
        self._accepted = 0
        self._refused: dict[str, Any] | None = None
        self._sent: deque[tuple[str, str]] = deque()  # channel and transaction ID
        self._unconfirmed: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue(_UNCONFIRMED_MAX)
        self._due = asyncio.Timeout(None)  # until the next answer

    async def run(self) -> tuple[int, dict[str, Any] | None]:
        """Send all; returns how many were accepted, and the refusal that ended it, if any.

        Raises `TimedOut`, `ConnectionLost`, `EnvelopeRefused` where a receipt is refused, and what
        the file's frames raise.
        """
        try:
            async with self._client, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._confirm())
                async with self._due:
                    await self._send()
                await self._unconfirmed.put(None)
        except ExceptionGroup as failed:
            (error, *_) = failed.exceptions
            if isinstance(error, TimeoutError):
                error = TimedOut(
                    f"{self._client.address} did not answer within {self._timeout_s:g} s"
                )
            raise error from failed
        return self._accepted, self._refused

    async def _send(self) -> None:
        async for status, info in self._client.broadcast(self._envelopes(), timeout_s=None):
            self._due.reschedule(None)
            if status != Status.SUCCESS:
                self._refused = {"status": status, "info": info}
                return
            self._accepted += 1
            envelope = self._sent.popleft()
            if self._asker is not None:
                await self._unconfirmed.put(envelope)
            if self._sent:
                self._answer_is_due()

    async def _envelopes(self) -> AsyncIterator[bytes]:
        async for raw in frames_as_they_come(self._file):
            if not self._sent:
                self._answer_is_due()
            self._sent.append(("", "") if self._asker is None else _named(raw))
            yield raw

    def _answer_is_due(self) -> None:
        self._due.reschedule(asyncio.get_running_loop().time() + self._timeout_s)

    async def _confirm(self) -> None:
        """Print the receipts, in order; raises at the first transaction that has none."""
        while (envelope := await self._unconfirmed.get()) is not None:
            assert self._asker is not None
            channel, transaction = envelope
            request = receipt_envelope(
                self._asker, channel, transaction, int(self._timeout_s * 1000),
                tls_hash=self._tls_hash,
            )  # fmt: skip
            receipt = await self._client.wait(request, timeout_s=self._timeout_s + _ANSWER_S)
            typer.echo(json.dumps({"transaction": transaction, **receipt}))
            _refuse_unordered(transaction, receipt, self._timeout_s)


def _refuse_unordered(transaction: str, receipt: dict[str, Any], timeout_s: float) -> None:
    """Raise where an accepted transaction has no receipt."""
    status, channel = receipt["status"], receipt["chain"]
    if status == Status.NOT_FOUND and channel is not None:
        raise TimedOut(
            f"transaction {transaction} was accepted, but was in no block of {channel} within "
            f"{timeout_s:g} s; it may be ordered later: ask again, or look at the node's /healthz"
        )
    if status != Status.SUCCESS:
        why = receipt.get("info") or "the node gave no reason"
        raise EnvelopeRefused(
            f"the receipt of transaction {transaction} was refused: {status}: {why}"
        )


def _named(envelope: bytes) -> tuple[str, str]:
    """Return an envelope's channel and transaction ID, for the receipt request."""
    try:
        return channel_header(envelope).channel_id, transaction_id(envelope)
    except Malformed:  # the node refuses it, with the reason
        return "", ""
