"""What can go wrong with a ledger's folder, by name."""

from __future__ import annotations

from multicast.errors import AmcastError, Conflict, UsageError


class Pruned(AmcastError):
    """The block was removed by pruning; another node or an archive may have it."""


class NotYet(AmcastError):
    """The block is not in the ledger yet."""

    retriable = True


class NotNext(UsageError):
    """A block was to be appended that is not the next one; nothing was written."""


class LedgerLocked(Conflict):
    """Someone else has the folder open for writing."""


class LedgerDamaged(AmcastError):
    """The folder does not hold what was written; says which file, where in it, and what is hit."""


class LedgerFull(AmcastError):
    """The block could not be written (disk full, quota); nothing changed, it can be tried again."""

    retriable = True


class LedgerFailed(AmcastError):
    """Syncing failed: what the disk holds is unknown until the ledger is opened anew."""

    definite = False
