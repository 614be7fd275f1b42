"""The errors of a ledger."""

from __future__ import annotations

from multicast.errors import AmcastError, Conflict, UsageError


class Pruned(AmcastError):
    """The block was pruned; another node or an archive may have it."""


class NotYet(AmcastError):
    """The block is not in the ledger yet."""

    retriable = True


class NotNext(UsageError):
    """The block to append is not the next one; nothing was written."""


class LedgerLocked(Conflict):
    """Another process, or another `Ledger`, has the folder open for writing."""


class LedgerDamaged(AmcastError):
    """The folder does not hold what was written; the text names file, byte and block."""


class LedgerFull(AmcastError):
    """The block could not be written (disk full, quota); nothing changed, so it can be retried."""

    retriable = True


class LedgerFailed(AmcastError):
    """A sync failed: what the disk holds is unknown until the ledger is opened again."""

    definite = False
