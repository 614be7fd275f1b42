"""Genuine atomic multicast on Apache Kafka: messages to sets of partitions, one order for all.

A *partition* is an address here, "P1". A *log* is the Kafka partition that stores the messages to
one set of them, each message once. docs/glossary.md explains all words.

`from amcast import ...` gives the same classes. Every error of a call is an `AmcastError`.
`multicast.aio` has the classes for asyncio, `multicast.testing` a system in memory for tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multicast.conditional.condition import Expectation, LogPosition, nothing_after
    from multicast.conditional.judge import Decision, WhyVoid
    from multicast.consuming.batches import Batch, Message
    from multicast.consuming.buffers import Waiting
    from multicast.consuming.consumer import Consumer
    from multicast.consuming.cursor import Cursor
    from multicast.consuming.subscription import Bounds
    from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome
    from multicast.errors import (
        AccessDenied,
        AmcastError,
        AppendNotAuthorized,
        AppendNotStored,
        AppendRefused,
        AppendUnknown,
        AuthenticationFailed,
        BufferFull,
        ClusterUnreachable,
        Conflict,
        EarlierPending,
        EarlierUnknown,
        Fenced,
        GroupInUse,
        HandlerFailed,
        NotAuthorized,
        PartitionsDiffer,
        ProtocolViolation,
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
    )
    from multicast.materializing.materialize import materialize
    from multicast.messages import MessageID
    from multicast.producing.keyed.partitioners import Keys, keys
    from multicast.producing.producer import Producer
    from multicast.producing.receipts import KeyedReceipts, Receipt, Receipts

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
    "EarlierPending",
    "EarlierUnknown",
    "Expectation",
    "Fenced",
    "GroupInUse",
    "HandlerFailed",
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
    "keys",
    "materialize",
    "nothing_after",
]

if not TYPE_CHECKING:
    _HOMES = (
        "conditional.condition",
        "conditional.judge",
        "consuming.batches",
        "consuming.buffers",
        "consuming.consumer",
        "consuming.cursor",
        "consuming.subscription",
        "drivers.protocol",
        "errors",
        "materializing.materialize",
        "messages",
        "producing.keyed.partitioners",
        "producing.producer",
        "producing.receipts",
    )

    def __getattr__(name: str) -> Any:
        """Import the classes when the first is asked for: the command often needs none."""
        if name == "__version__":  # reading it takes as long as importing all classes
            return import_module("multicast.cli.installed").version()
        if name not in __all__:
            raise AttributeError(f"module 'multicast' has no attribute {name!r}")
        for home in _HOMES:
            names = vars(import_module(f"multicast.{home}"))
            globals().update({public: names[public] for public in __all__ if public in names})
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})
