"""Bytes that processes received and sent over TCP, as the kernel counts them for each socket.

In go process numbers; out come two sums. Linux only: `sock_diag` gives the counters, and the
links in `/proc/PID/fd` say whose socket it is. What went over a socket that is closed by now is
not counted, so take the difference of two readings between which connections stay.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_INFO = 2
_ALL_STATES = 0xFFFFFFFF
_HEAD = struct.Struct("=IHHII")
_ASK = struct.Struct("=BBBBI48x")
_SOCKET_BYTES = 72  # struct inet_diag_msg; its last word is the socket's inode
_ATTRIBUTE = struct.Struct("=HH")
_COUNTERS = struct.Struct("=QQ")
_COUNTERS_AT = 120  # in struct tcp_info: bytes_acked, bytes_received


class Traffic(NamedTuple):
    """Bytes over TCP; what was sent counts when it was acknowledged."""

    received: int
    sent: int


def traffic(pids: Iterable[int]) -> Traffic:
    """Sum what the open TCP sockets of these processes received and sent so far."""
    inodes = {inode for pid in pids for inode in _sockets_of(pid)}
    received = sent = 0
    for family in (socket.AF_INET, socket.AF_INET6):
        for inode, one in _all_sockets(family):
            if inode in inodes:
                received += one.received
                sent += one.sent
    return Traffic(received, sent)


def _sockets_of(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    yield int(target[8:-1])


def _all_sockets(family: int) -> Iterator[tuple[int, Traffic]]:
    """Ask the kernel for all TCP sockets of a family; nothing where it does not tell."""
    ask = _ASK.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ALL_STATES)
    head = _HEAD.pack(_HEAD.size + len(ask), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel,
    ):
        kernel.settimeout(5.0)
        kernel.send(head + ask)
        while True:
            told = kernel.recv(1 << 17)
            at = 0
            while at < len(told):
                length, kind, *_ = _HEAD.unpack_from(told, at)
                if kind in (_DONE, _ERROR):
                    return
                yield from _read(told[at + _HEAD.size : at + length])
                at += _aligned(length)


def _read(message: bytes) -> Iterator[tuple[int, Traffic]]:
    (inode,) = struct.unpack_from("=I", message, _SOCKET_BYTES - 4)
    at = _SOCKET_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        body = at + _ATTRIBUTE.size
        if kind == _INFO and length >= _ATTRIBUTE.size + _COUNTERS_AT + _COUNTERS.size:
            acked, received = _COUNTERS.unpack_from(message, body + _COUNTERS_AT)
            yield inode, Traffic(received, acked)
        at += max(_aligned(length), _ATTRIBUTE.size)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
