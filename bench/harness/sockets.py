"""Sums the bytes that processes received over TCP, by the kernel's counters of sockets.

Linux only: `sock_diag` returns the counters, and the links in `/proc/PID/fd` tell the process of a
socket. Closed sockets are not counted, so take the difference of two readings between which
connections stay open.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

# Constants of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
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
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128  # in struct tcp_info: bytes_received


def received_bytes(pids: Iterable[int]) -> int:
    """Sum the bytes that the open TCP sockets of these processes received so far."""
    inodes = {inode for pid in pids for inode in _sockets_of(pid)}
    return sum(
        received
        for family in (socket.AF_INET, socket.AF_INET6)
        for inode, received in _all_sockets(family)
        if inode in inodes
    )


def _sockets_of(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    yield int(target[8:-1])


def _all_sockets(family: int) -> Iterator[tuple[int, int]]:
    """Yield inode and received bytes of a family's TCP sockets; nothing if the kernel refuses."""
    ask = _ASK.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ALL_STATES)
    head = _HEAD.pack(_HEAD.size + len(ask), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel,
    ):
        kernel.settimeout(5.0)
        kernel.send(head + ask)
        while True:
            answer = kernel.recv(1 << 17)
            position = 0
            while position < len(answer):
                length, kind, *_ = _HEAD.unpack_from(answer, position)
                if kind in (_DONE, _ERROR):
                    return
                yield from _read(answer[position + _HEAD.size : position + length])
                position += _aligned(length)


def _read(message: bytes) -> Iterator[tuple[int, int]]:
    (inode,) = struct.unpack_from("=I", message, _SOCKET_BYTES - 4)
    position = _SOCKET_BYTES
    while position + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, position)
        body = position + _ATTRIBUTE.size
        if kind == _INFO and length >= _ATTRIBUTE.size + _RECEIVED_AT + _RECEIVED.size:
            yield inode, _RECEIVED.unpack_from(message, body + _RECEIVED_AT)[0]
        position += max(_aligned(length), _ATTRIBUTE.size)


def _aligned(length: int) -> int:
    return (length + 3) & ~3
