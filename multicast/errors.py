"""The public errors. Each says whether to try again, and whether the operation certainly failed.

    retriable   the same call may succeed later
    definite    the requested operation certainly had no effect

`exit_code` is the exit code of the command line (docs/operating.md): 1 failed, 2 usage,
3 `amcast verify` has found a violation, 4 unreachable or time-out, 5 conflict.
"""

from __future__ import annotations

from typing import Self


class AmcastError(Exception):
    """Base of every error of this project; its text is one sentence for the user."""

    retriable: bool = False
    definite: bool = True
    exit_code: int = 1
    # The Kafka partition that the error concerns; None if it is unknown or not a single one.
    partition: tuple[str, int] | None = None

    def about(self, partition: tuple[str, int]) -> Self:
        """Set `partition`; return the error itself."""
        self.partition = partition
        return self


class UsageError(AmcastError):
    """The request is invalid; nothing was done."""

    exit_code = 2


class TopicMissing(UsageError):
    """A required Kafka topic or partition does not exist."""


class UndeclaredDestination(UsageError):
    """The plan has no log for this destination set or a superset; the text says what to run."""


class UncoveredInterest(UsageError):
    """An epoch's plan is missing, has not begun, or has no collector for all of the interest."""


class ClusterUnreachable(AmcastError):
    """No broker answered within the time-out; whether the request had an effect is unknown."""

    retriable = True
    definite = False
    exit_code = 4


class AccessDenied(AmcastError):
    """The brokers answered and refused; unlike `ClusterUnreachable`, waiting does not help."""


class NotAuthorized(AccessDenied):
    """The user lacks a permission; the text names it and the topic, group or cluster."""


class AuthenticationFailed(AccessDenied):
    """The brokers reject the login: user name, password or mechanism is wrong."""


class TlsFailed(AccessDenied):
    """The TLS handshake failed: a side does not trust a certificate, or it names another host."""


class TimedOut(AmcastError):
    """A bounded wait ended before the event; the event may still happen."""

    retriable = True
    definite = False
    exit_code = 4


class BufferFull(AmcastError):
    """The producer's buffer stayed full for the time allowed; the message was not sent."""

    retriable = True
    exit_code = 4


class EarlierPending(AmcastError):
    """A message that has to follow others waited too long for them; it was not sent."""

    retriable = True
    exit_code = 4


class EarlierUnknown(AmcastError):
    """It is unknown whether a message is stored that another has to follow: that was not sent.

    A message that is acknowledged in the log of the unknown one ends this.
    """

    retriable = True
    exit_code = 4


class AppendRefused(AmcastError):
    """Kafka refused the append for good; the log does not contain the record."""


class AppendNotAuthorized(AppendRefused, NotAuthorized):
    """The user lacks the permission Write; the log does not contain the record."""


class AppendNotStored(AppendRefused):
    """The log does not contain the record, through no fault of it; another append may succeed."""

    retriable = True
    exit_code = 4


class AppendUnknown(AmcastError):
    """The append was not acknowledged; the log may contain the record, or get it later."""

    retriable = True
    definite = False
    exit_code = 4


class Conflict(AmcastError):
    """The system's state forbids the operation, for example because another operator came first."""

    exit_code = 5


class Fenced(Conflict):
    """Another process has taken over what this one did, and Kafka refuses this one from now on."""

    definite = False


class GroupInUse(Conflict):
    """The consumer group has members, and this commit is of none of them; nothing was stored."""

    retriable = True


class PartitionsDiffer(Conflict):
    """The topic's number of partitions is not the plan's, so keys have no agreed place."""

    retriable = True


class UnknownVersion(AmcastError):
    """What is to be read was written in a version that this program does not read."""


class Trimmed(AmcastError):
    """The offset to be read is below the log's start (retention removed it), or above its end.

    Trying again does not help: seek to "latest" or to a time (docs/groups.md).
    """


class Truncated(AmcastError):
    """Kafka has lost the end of a log or a stream that was read; other records have its offsets."""


class TopicChanged(AmcastError):
    """A topic was deleted and recreated, or has another ID than the plan records."""


class HandlerFailed(AmcastError):
    """A handler failed at a message as often as it may; what it did may have an effect."""

    retriable = True
    definite = False


class UnsafeCluster(AmcastError):
    """A setting of the Kafka cluster would break a guarantee."""


class ProtocolViolation(AmcastError):
    """A log contains what no correct writer writes; the reader stops instead of guessing."""
