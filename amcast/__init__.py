"""Genuine atomic multicast on Apache Kafka: messages to sets of partitions, one order for all.

    from amcast import Producer, Consumer, aio, testing

The names are those of `multicast`, and the classes are the very ones: this package only gives them
the name of the distribution. They are imported when they are first asked for, so that the command
`amcast` can say in a sentence what is missing.
"""

from importlib import import_module
from os.path import dirname, realpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amcast import aio, testing
    from multicast import (
        AccessDenied,
        AmcastError,
        Appended,
        AppendFailed,
        AppendNotAuthorized,
        AppendNotStored,
        AppendOutcome,
        AppendRefused,
        AppendUnknown,
        AuthenticationFailed,
        Batch,
        Bounds,
        BufferFull,
        ClusterUnreachable,
        Conflict,
        Consumer,
        Cursor,
        Decision,
        Expectation,
        KeyedReceipts,
        Keys,
        LogPosition,
        Message,
        MessageID,
        NotAuthorized,
        PartitionsDiffer,
        Producer,
        ProtocolViolation,
        Receipt,
        Receipts,
        TimedOut,
        TlsFailed,
        TopicChanged,
        TopicMissing,
        Trimmed,
        Truncated,
        UncoveredInterest,
        UndeclaredDestination,
        UnknownVersion,
        UnsafeCluster,
        UsageError,
        Waiting,
        WhyVoid,
        keys,
        nothing_after,
    )

    __version__: str

__all__ = [
    "AccessDenied",
    "AmcastError",
    "AppendFailed",
    "AppendNotAuthorized",
    "AppendNotStored",
    "AppendOutcome",
    "AppendRefused",
    "AppendUnknown",
    "Appended",
    "AuthenticationFailed",
    "Batch",
    "Bounds",
    "BufferFull",
    "ClusterUnreachable",
    "Conflict",
    "Consumer",
    "Cursor",
    "Decision",
    "Expectation",
    "KeyedReceipts",
    "Keys",
    "LogPosition",
    "Message",
    "MessageID",
    "NotAuthorized",
    "PartitionsDiffer",
    "Producer",
    "ProtocolViolation",
    "Receipt",
    "Receipts",
    "TimedOut",
    "TlsFailed",
    "TopicChanged",
    "TopicMissing",
    "Trimmed",
    "Truncated",
    "UncoveredInterest",
    "UndeclaredDestination",
    "UnknownVersion",
    "UnsafeCluster",
    "UsageError",
    "Waiting",
    "WhyVoid",
    "aio",
    "keys",
    "nothing_after",
    "testing",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name when it is first asked for. Raises `ImportError` if that is impossible."""
        if name in ("aio", "testing"):
            return import_module(f"amcast.{name}")
        if name != "__version__" and name not in __all__:
            raise AttributeError(f"module 'amcast' has no attribute {name!r}")
        multicast = import_module("multicast")
        _refuse_shadowed(multicast.__file__)
        value = globals()[name] = getattr(multicast, name)
        return value

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]


def _refuse_shadowed(file: str | None) -> None:
    """Raise `ImportError` if `multicast` is a file or folder of another project."""
    ours = f"{dirname(dirname(realpath(__file__)))}/multicast"  # noqa: PTH120 - pathlib loads slowly
    if file is not None and realpath(file) != f"{ours}/__init__.py":
        raise ImportError(
            f"amcast needs its own package 'multicast' in {ours}, but Python finds "
            f"{file.removesuffix('/__init__.py')} first; rename that file or folder",
            name="multicast",
            path=file,
        )
