"""The command `amcast`: it runs a verb, and every error becomes a sentence and an exit code.

Exit codes: 0 ok, 1 failed, 2 usage, 3 a violation of the order, 4 cluster unreachable or time-out,
5 conflict, 6 changes to make (only with --detailed-exitcode), 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from multicast.cli.installed import version
from multicast.errors import AmcastError, UsageError
from topology import MissingExtra
from topology.files import failure_text, guard

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_TEMPORARY = "No usable temporary directory"  # as `tempfile` says of one that is full, too
_FULL_BYTES = 1 << 20  # less is of no use to anybody
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run `amcast`. An error prints one sentence on stderr and ends with its exit code."""
    _open_closed()
    guard()
    try:
        with _terminable():
            _run(sys.argv[1:])
    except AmcastError as error:
        sys.stderr.write(failure_text(error))
        _flush_output()
        sys.exit(error.exit_code)
    except MissingExtra as error:
        sys.stderr.write(failure_text(error))
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError as error:
        if not _is_output_closed():
            sys.stderr.write(f"amcast: {error.strerror}\n")
            sys.exit(AmcastError.exit_code)
        # The reader of our output has closed it, as in `amcast receive | head`.
        _drop_output()
        sys.exit(0)
    except OSError as error:
        # A file that a command was given, or a full disk; anything else is a defect.
        is_full = error.errno in _NO_ROOM or str(error.strerror).startswith(_NO_TEMPORARY)
        if error.filename is None and not is_full:
            raise
        where = "" if error.filename is None else f"{os.fspath(error.filename)}: "
        full = _full_folder() if is_full else ""
        sys.stderr.write(failure_text(f"{where}{error.strerror}{full}"))
        _flush_output()
        sys.exit(AmcastError.exit_code if error.filename is None else UsageError.exit_code)


def _run(arguments: Sequence[str]) -> None:
    """Run the command; raises what it raises, or `SystemExit` with its exit code."""
    try:
        if arguments == ["--version"]:
            sys.stdout.write(f"{version()}\n")
            sys.exit(0)
        from multicast.cli.commands import build  # noqa: PLC0415 - typer loads slowly

        colours = {"color": False} if os.environ.get("NO_COLOR") else {}
        build(arguments)(prog_name="amcast", **colours)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None  # for which typer exits with 1, and says nothing
        try:
            sys.stdout.flush()  # a full disk is found here, and not by Python after our end
        except BrokenPipeError:
            _drop_output()
        raise


@contextmanager
def _terminable() -> Iterator[None]:
    """Have SIGTERM end a verb as Ctrl-C does, which commits and flushes; verbs may do otherwise."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def terminate(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as ended:
        if came and getattr(ended, "code", _INTERRUPTED) == _INTERRUPTED:
            sys.exit(_TERMINATED)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _full_folder() -> str:
    """Name the folder of temporary files if that is full: nobody else names what is there."""
    with suppress(OSError):
        folder = tempfile.gettempdir()
        if shutil.disk_usage(folder).free < _FULL_BYTES:
            return f" in {folder}, the folder of temporary files (TMPDIR names another one)"
    return ""


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
