"""The command `amcast`: it runs a verb, and every error becomes a sentence and an exit code.

Exit codes: 0 ok, 1 failed, 2 usage, 3 a violation of the order, 4 cluster unreachable or time-out,
5 conflict, 6 changes to make (only with --detailed-exitcode), 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Sequence

from multicast.cli.installed import version
from multicast.errors import AmcastError, UsageError
from topology import MissingExtra

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def main() -> None:
    """Run `amcast`. An error prints one sentence on stderr and ends with its exit code."""
    _open_closed()
    try:
        _run(sys.argv[1:])
    except AmcastError as error:
        sys.stderr.write(f"amcast: {error}\n")
        _flush_output()
        sys.exit(error.exit_code)
    except MissingExtra as error:
        sys.stderr.write(f"amcast: {error}\n")
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError as error:
        if not _is_output_closed():
            sys.stderr.write(f"amcast: {error.strerror}\n")
            sys.exit(AmcastError.exit_code)
        # The reader of our output has closed it, as in `amcast receive | head`.
        _drop_output()
        sys.exit(0)
    except OSError as error:
        # A file that a command was given, or a full disk; anything else is a defect.
        if error.filename is None and error.errno not in _NO_ROOM:
            raise
        where = "" if error.filename is None else f"{os.fspath(error.filename)}: "
        sys.stderr.write(f"amcast: {where}{error.strerror}\n")
        _flush_output()
        sys.exit(AmcastError.exit_code if error.filename is None else UsageError.exit_code)


def _run(arguments: Sequence[str]) -> None:
    """Run the command; raises what it raises, or `SystemExit` with its exit code."""
    try:
        if arguments == ["--version"]:
            sys.stdout.write(f"{version()}\n")
            sys.exit(0)
        from multicast.cli.commands import build  # noqa: PLC0415 - typer loads slowly

        build(arguments)(prog_name="amcast")
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None  # for which typer exits with 1, and says nothing
        try:
            sys.stdout.flush()  # a full disk is found here, and not by Python after our end
        except BrokenPipeError:
            _drop_output()
        raise


def _open_closed() -> None:
    """Give the streams that the caller has closed (`amcast … >&-`) to /dev/null."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _is_output_closed() -> bool:
    """Whether nobody can read our output any more."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors are always reported
    return any(what & (select.POLLERR | select.POLLHUP) for _, what in output.poll(0))


def _flush_output() -> None:
    """Flush stdout; drop what cannot be written, or Python reports an error when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
