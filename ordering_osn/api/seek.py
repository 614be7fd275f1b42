"""Judge a Deliver request: whether its signer may read the chain, and which blocks come next.

The input is the request's bytes, the time and a chain. The rules are Fabric's (its common/deliver
and file ledger). No I/O and no gRPC; only `seek_envelope`, which makes a client's request, reads a
clock.

    request   a signed envelope; its header names the channel, its data is a SeekInfo
    start     the first block wanted, resolved once, when the request arrives
    stop      the last block wanted; where it resolves below the start ("newest" from a start at
              "next"), it is never reached, and the stream is endless
    height    the number of the chain's next block

Checks, in this order:

    1. `read_request`: it is small, the envelope can be decoded, its timestamp is near the node's
       time, and it is bound to the TLS client
    2. the caller: the channel exists, the SeekInfo can be decoded, the chain is not errored
    3. `ReadAccess`: the signer's certificate has not expired; the Readers policy is met (in
       maintenance mode the orderer group's)
    4. `Seek`: start and stop exist and fit each other

Invariant: start <= number; numbers are delivered without a gap, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ordering_osn.api.channels import Channel, Channels, Refused, Status
from ordering_osn.chain.envelopes import (
    BadEnvelope,
    ParsedEnvelope,
    Signer,
    canonical,
    decoded,
    signed_envelope,
)
from ordering_osn.config.configtx import NAME_LENGTH_MAX
from ordering_osn.config.policies import PolicyNotMet, SignedData
from ordering_osn.identity import expires_at
from ordering_osn.protos import (
    HeaderType,
    SeekInfo,
    SeekNewest,
    SeekNextCommit,
    SeekOldest,
    SeekPosition,
    SeekSpecified,
)
from ordering_osn.quoting import quoted

READERS = "/Channel/Readers"
READERS_IN_MAINTENANCE = "/Channel/Orderer/Readers"
TIME_WINDOW = timedelta(minutes=15)  # Fabric's default, General.Authentication.TimeWindow
# A request of any kind: the most has an identity of 16 KiB; one of DeliverMulti the names of 64
# chains of 249 characters. With ten times more, strangers' JSON would hold up the event loop.
REQUEST_BYTES_MAX = 64 << 10
ENDLESS = 2**64 - 1  # the largest block number: a stop that no chain reaches
Position = int | str


class SeekRequest(NamedTuple):
    """A request whose envelope, timestamp and TLS binding are valid; its signer is unchecked."""

    channel: str
    data: bytes
    signed: SignedData


def read_request(raw: bytes, *, now: datetime, tls_hash: bytes | None) -> SeekRequest:
    """Read the request in an envelope; raises `Refused`.

    `tls_hash` is the SHA-256 of the client's TLS certificate; None without mutual TLS.
    """
    check_size(raw)
    try:
        envelope = ParsedEnvelope(raw)
        header = envelope.header
        signed = SignedData.of(envelope)
    except BadEnvelope as error:
        raise Refused(Status.BAD_REQUEST, str(error)) from error
    if not header.HasField("timestamp"):
        raise Refused(Status.BAD_REQUEST, "the channel header has no timestamp")
    sent_s = header.timestamp.seconds + header.timestamp.nanos / 1e9
    check_sender(sent_s, header.tls_cert_hash, now=now, tls_hash=tls_hash)
    channel = header.channel_id
    if len(channel) > NAME_LENGTH_MAX:
        raise Refused(Status.NOT_FOUND, no_such_channel(channel))
    return SeekRequest(channel, envelope.payload.data, signed)


def check_size(raw: bytes) -> None:
    """Raise `Refused` for what is too large for a request, BEFORE anything of it is decoded."""
    if len(raw) > REQUEST_BYTES_MAX:
        raise Refused(
            Status.BAD_REQUEST, f"the request has {len(raw)} bytes, more than {REQUEST_BYTES_MAX}"
        )


def check_sender(sent_s: float, bound_to: bytes, *, now: datetime, tls_hash: bytes | None) -> None:
    """Raise `Refused` for a request of another time, or bound to another TLS client."""
    if abs(now.timestamp() - sent_s) > TIME_WINDOW.total_seconds():
        raise Refused(
            Status.BAD_REQUEST,
            f"the request's time is more than {TIME_WINDOW} from this node's time",
        )
    if tls_hash is not None and bound_to != tls_hash:
        raise Refused(
            Status.BAD_REQUEST, "the request does not hold the hash of the client's TLS certificate"
        )


def no_such_channel(name: str) -> str:
    """Say that this node does not run a channel; the name may be anything that a client sent."""
    return f"this node has no channel {quoted(name)}"


def channel_of(channels: Channels, name: str) -> Channel:
    """Return the channel that a request names; raises `Refused`."""
    channel = channels.get(name)
    if channel is None:
        raise Refused(Status.NOT_FOUND, no_such_channel(name))
    return channel


def check_reader(channel: Channel, signed: SignedData) -> None:
    """Raise `Refused` FORBIDDEN unless the signer satisfies the channel's Readers now."""
    config = channel.config
    policy = READERS_IN_MAINTENANCE if config.maintenance else READERS
    try:
        config.policies.evaluate(policy, [signed])
    except PolicyNotMet as error:
        raise Refused(
            Status.FORBIDDEN,
            f"the identity does not satisfy the Readers of channel {channel.name}: {error}",
        ) from error


def check_expiry(creator: bytes, now: datetime) -> None:
    """Raise `Refused` FORBIDDEN where the creator's certificate has expired at `now`."""
    expires = expires_at(creator)
    if expires is not None and now > expires:
        raise Refused(Status.FORBIDDEN, "the identity has expired")


class ReadAccess:
    """Checks before each answer whether the signer may read; a policy once for each config."""

    def __init__(self, channels: Sequence[Channel], signed: SignedData) -> None:
        self.channels, self._signed = channels, signed
        self._sequences: dict[str, int] = {}

    def check(self, now: datetime) -> None:
        """Raise `Refused` FORBIDDEN unless the signer may read all channels at `now`."""
        check_expiry(self._signed.creator, now)
        for channel in self.channels:
            sequence = channel.config.sequence
            if self._sequences.get(channel.name) != sequence:
                check_reader(channel, self._signed)
                self._sequences[channel.name] = sequence


def seek_info(data: bytes) -> Any:
    """Decode the SeekInfo of a request; raises `Refused`."""
    try:
        return decoded(SeekInfo, data, "the seek info")
    except BadEnvelope as error:
        raise Refused(Status.BAD_REQUEST, str(error)) from error


class Seek:
    """The blocks of one request: `number` is the next to deliver, `stop` the last."""

    def __init__(self, info: Any, *, base: int, height: int) -> None:
        if not info.HasField("start") or not info.HasField("stop"):
            raise Refused(Status.BAD_REQUEST, "the seek info has no start or no stop")
        self.number = self._start(info.start, base, height)
        self.stop = self._stop(info, height)
        self._fail = info.behavior == SeekInfo.FAIL_IF_NOT_READY

    @staticmethod
    def _start(position: Any, base: int, height: int) -> int:
        kind = position.WhichOneof("Type")
        if kind == "specified":
            number: int = position.specified.number
        elif kind is None:
            raise Refused(Status.NOT_FOUND, "the start names no block")
        else:
            number = {"oldest": base, "newest": height - 1, "next_commit": height}[kind]
        if number > height:
            raise Refused(Status.NOT_FOUND, f"there is no block {number}: the next one is {height}")
        if number < base:
            raise Refused(Status.NOT_FOUND, f"block {number} was pruned: the oldest one is {base}")
        return number

    def _stop(self, info: Any, height: int) -> int:
        kind = info.stop.WhichOneof("Type")
        if kind == "specified":
            stop: int = info.stop.specified.number
            if stop < self.number:
                raise Refused(
                    Status.BAD_REQUEST, f"the stop, {stop}, is before the start, {self.number}"
                )
            return stop
        if kind is None:  # Fabric's: it means block 0, which only a start at 0 meets
            return 0
        if kind == "next_commit":
            # A request that does not wait gets the blocks that exist now. (Fabric reads such a stop
            # as block 0, as where it names none.)
            fail = info.behavior == SeekInfo.FAIL_IF_NOT_READY
            return height - 1 if fail and self.number < height else height
        # As a stop, "oldest" is the start itself. Start and stop are resolved at the same height:
        # from newest to newest is one block, even if another is written meanwhile.
        return {"oldest": self.number, "newest": height - 1}[kind]

    def next(self, height: int) -> int | None:
        """Return the number to deliver now; None: wait until the chain grows. Raises `Refused`."""
        if self.number < height:
            return self.number
        if self._fail:
            raise Refused(Status.NOT_FOUND, f"there is no block {self.number} yet")
        return None

    def delivered(self) -> bool:
        """Record that block `number` was delivered; returns whether it was the last one."""
        self.number += 1
        return self.number - 1 == self.stop


def _position(position: Position) -> Any:
    if isinstance(position, int):
        return SeekPosition(specified=SeekSpecified(number=position))
    return {
        "oldest": SeekPosition(oldest=SeekOldest()),
        "newest": SeekPosition(newest=SeekNewest()),
        "next": SeekPosition(next_commit=SeekNextCommit()),
    }[position]


def seek_envelope(
    signer: Signer,
    channel: str,
    start: Position,
    stop: Position = ENDLESS,
    *,
    block_until_ready: bool = True,
    best_effort: bool = False,
    tls_hash: bytes = b"",
    now: datetime | None = None,
) -> bytes:
    """Make a signed request for the blocks from `start` to `stop`.

    Positions are numbers, or "oldest", "newest", "next". `tls_hash` is the SHA-256 of the client's
    own TLS certificate, under mutual TLS.
    """
    info = SeekInfo(
        start=_position(start),
        stop=_position(stop),
        behavior=SeekInfo.BLOCK_UNTIL_READY if block_until_ready else SeekInfo.FAIL_IF_NOT_READY,
        error_response=SeekInfo.BEST_EFFORT if best_effort else SeekInfo.STRICT,
    )
    return signed_envelope(
        HeaderType.DELIVER_SEEK_INFO,
        channel,
        canonical(info),
        signer=signer,
        now=now or datetime.now(UTC),
        tls_hash=tls_hash,
    )
