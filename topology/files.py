"""Writing output, to files and terminals: an existing file is overwritten only with `--force`.

A path that names an open descriptor of this process (/dev/stdout, /dev/fd/3) is written through
that descriptor, whatever it leads to: the shell has opened it for us, with `>` or `>>`.

What goes to a terminal is text and colours, and nothing else that a terminal obeys: names of
groups, and texts in records, are chosen by others, and a control character in one could change the
terminal's title, its keys, or lines that were written before. Pipes get all bytes as they are.

Invariant: of what is written, a terminal obeys line feeds, tabs, and colours until their line ends.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

# Of symbolic links one after another; Linux follows as many (path_resolution(7)).
_LINKS_MAX = 40
_COLOUR_OR_SPECIAL = re.compile(r"(\x1b\[[0-9;]*m)|[^\n\t -~]")
_PLAIN = "\x1b[0m"
DRAFT = ".draft"  # the end of the name of a file that is not finished


class FileExists(Exception):
    """The output file exists; the message is one sentence that says how to go on."""


def write_text(path: Path, text: str, *, force: bool, instead: str = "") -> None:
    """Write a text file, in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode(), force=force, instead=instead)


def write_bytes(path: Path, content: bytes, *, force: bool, instead: str = "") -> None:
    """Write a file; it holds the whole content, or what it held before.

    A pipe, a device or an open descriptor (/dev/stdout) is written in place, and may hold a part
    after an error; a pipe that nobody reads blocks. Raises `OSError`, and, without `force`,
    `FileExists` if the file exists with other content. `instead` is the option that names another
    file, for the error message.
    """
    if not force:
        refuse_existing(path, content, instead=instead)
    descriptor = _descriptor_of(path)
    try:
        if descriptor is not None:
            _write_open(descriptor, content)
        elif path.exists() and not path.is_file():  # a pipe or a device: nothing can be lost
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content)
    except OSError as error:  # the draft's name says nothing to a user
        raise OSError(error.errno, error.strerror, str(path)) from error


def is_written_in_place(path: Path) -> bool:
    """Whether no contents can be lost: a pipe, a device, an open descriptor; not a folder."""
    return _descriptor_of(path) is not None or (
        path.exists() and not path.is_file() and not path.is_dir()
    )


def _descriptor_of(path: Path) -> int | None:
    """Give the descriptor of this process that the path names, through links; else None.

    The kernel's link /proc/self/fd/1 looks like one to the redirected file: who follows it replaces
    that file, and what is printed later goes to the old one.
    """
    for _ in range(_LINKS_MAX):
        folder = Path(os.path.realpath(path.parent))
        if folder == Path(f"/proc/{os.getpid()}/fd") and path.name.isdecimal():
            return int(path.name)
        try:
            path = folder / path.readlink()
        except OSError:  # no link, or nothing at all
            return None
    return None


def _write_open(descriptor: int, content: bytes) -> None:
    """Write after what was printed so far, where the descriptor stands."""
    sys.stdout.flush()
    sys.stderr.flush()
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)


def _replace(path: Path, content: bytes) -> None:
    """Put a draft beside the file in its place, after it is on the disk."""
    draft = path.with_name(f".amcast-{uuid4().hex}{DRAFT}")  # of one writer, however long the name
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if path.exists():
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Sync the folder itself: which files it holds."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_existing_of(files: Iterable[Path | None], *, force: bool) -> None:
    """Raise `FileExists` if one of these files exists, before the command does its work."""
    for file in files:
        if file is not None and not force:
            refuse_existing(file)


def refuse_existing(path: Path, content: bytes | None = None, *, instead: str = "") -> None:
    """Raise `FileExists` if the file exists and does not hold `content` already.

    What is written in place (a pipe, /dev/null, /dev/stdout) passes: no contents can be lost.
    """
    if is_written_in_place(path) or not path.is_file():
        return
    if content is not None and path.read_bytes() == content:
        return
    other = f"give another name with {instead}" if instead else "give another name"
    raise FileExists(f"{path} exists already; {other}, or give --force to overwrite it")


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Say in a few words why a text file could not be read; its name is not among them."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it is not text in UTF-8"


def printable(text: str) -> str:
    """Write control characters, line feeds and tabs, too, as Python does in a text."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def failure_text(error: object) -> str:
    """Give the lines that say on stderr why a command has failed."""
    return "amcast: " + "\n".join(map(printable, str(error).split("\n"))) + "\n"


def shown(text: str) -> str:
    """Give text as a terminal may get it; a line with colours ends without one."""
    text = _COLOUR_OR_SPECIAL.sub(lambda each: each[1] or printable(each[0]), text)
    return text.replace("\n", f"{_PLAIN}\n") if _PLAIN[0] in text else text


class TerminalText(io.TextIOWrapper):
    """A text stream to a terminal."""

    def write(self, text: str, /) -> int:
        """Write what a terminal may get."""
        super().write(shown(text))
        return len(text)


def guard() -> None:
    """Have stdout give a terminal only what it may get."""
    if sys.stdout.isatty():
        old = sys.stdout
        sys.stdout = TerminalText(
            old.buffer, encoding=old.encoding, errors=old.errors, line_buffering=True
        )
