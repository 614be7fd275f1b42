"""The errors that users meet, and the two things each of them says.

    retriable   the same call may succeed later
    definite    what was asked for certainly did not happen

In doubt an error is not definite. `exit_code` is what the command line ends with (README, exit
codes): 1 failed, 2 usage, 3 an ordering violation, 4 unreachable or time-out, 5 conflict.
"""

from __future__ import annotations

from typing import Self


class AmcastError(Exception):
    """Base of every error of this project; its text is one sentence for a person."""

    retriable: bool = False
    definite: bool = True
    exit_code: int = 1
    # The one Kafka partition that the error is about, where a driver knows it.
    partition: tuple[str, int] | None = None

    def about(self, partition: tuple[str, int]) -> Self:
        """Name the Kafka partition; give the error itself."""
        self.partition = partition
        return self


class UsageError(AmcastError):
    """The caller asked for something that has no meaning; nothing was done."""

    exit_code = 2


class TopicMissing(UsageError):
    """A Kafka topic or partition that is to be used does not exist."""


class UndeclaredDestination(UsageError):
    """No declared destination set covers the message's; the text names the command that helps."""


class UncoveredInterest(UsageError):
    """No collector of the running epoch decides all logs of this interest."""


class ClusterUnreachable(AmcastError):
    """No broker answered within the time-out; nothing is known to have happened."""

    retriable = True
    definite = False
    exit_code = 4


class AccessDenied(AmcastError):
    """The brokers answer, and refuse: waiting does not help, unlike with `ClusterUnreachable`."""


class NotAuthorized(AccessDenied):
    """The user lacks a right; the text names the right and the topic, group or cluster."""


class AuthenticationFailed(AccessDenied):
    """The brokers do not accept the user: name, password or mechanism is wrong."""


class TlsFailed(AccessDenied):
    """A certificate is not trusted, on either side, or names another host."""


class TimedOut(AmcastError):
    """A bounded wait ended; what was waited for may still happen."""

    retriable = True
    definite = False
    exit_code = 4


class BufferFull(AmcastError):
    """The producer's buffer stayed full for as long as the caller allowed; nothing was sent."""

    retriable = True
    exit_code = 4


class AppendRefused(AmcastError):
    """Kafka refused the append for good; the record does not stand in the log."""


class AppendNotAuthorized(AppendRefused, NotAuthorized):
    """The user lacks the right Write; the record does not stand in the log."""


class AppendUnknown(AmcastError):
    """The append was not acknowledged; the record may stand in the log, or come to."""

    retriable = True
    definite = False
    exit_code = 4


class Conflict(AmcastError):
    """Another operator or another epoch came first; nothing was changed."""

    exit_code = 5


class UnknownVersion(AmcastError):
    """A record that continues the accepted stream was written by a newer version of amcast."""


class Trimmed(AmcastError):
    """The log no longer holds the offset that is to be read: retention went past it."""


class TopicChanged(AmcastError):
    """A topic was deleted and made again, or is not the one that the plan names."""


class UnsafeCluster(AmcastError):
    """A setting of the cluster would break a guarantee."""


class ProtocolViolation(AmcastError):
    """The log says what no correct writer writes; the reader stops rather than guess."""
