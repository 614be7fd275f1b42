"""Writing output files: an existing file is overwritten only with `--force`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4


class FileExists(Exception):
    """The output file exists; the message is one sentence that says how to go on."""


def write_text(path: Path, text: str, *, force: bool, instead: str = "") -> None:
    """Write a text file, in UTF-8; it holds the whole text, or what it held before.

    Raises `OSError`, and, without `force`, `FileExists` if the file exists with another text.
    `instead` is the option that names another file, for the error message.
    """
    if not force:
        refuse_existing(path, text, instead=instead)
    if path.exists() and not path.is_file():  # a pipe or a device: nothing can be lost
        path.write_text(text, encoding="utf-8")
        return
    try:
        _replace(path.resolve(), text.encode())
    except OSError as error:  # the draft's name says nothing to a user
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, content: bytes) -> None:
    """Put a draft beside the file in its place, after it is on the disk."""
    draft = path.with_name(f".amcast-{uuid4().hex}.draft")  # of one writer, however long the name
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


def refuse_existing_of(files: Iterable[Path | None], *, force: bool) -> None:
    """Raise `FileExists` if one of these files exists, before the command does its work."""
    for file in files:
        if file is not None and not force:
            refuse_existing(file)


def refuse_existing(path: Path, text: str | None = None, *, instead: str = "") -> None:
    """Raise `FileExists` if the file exists and does not hold `text` already.

    Anything but a regular file (a pipe, /dev/null) passes: no contents can be lost.
    """
    if not path.is_file():
        return
    if text is not None and path.read_bytes() == text.encode():
        return
    other = f"give another name with {instead}" if instead else "give another name"
    raise FileExists(f"{path} exists already; {other}, or give --force to overwrite it")


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Say in a few words why a text file could not be read; its name is not among them."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it is not text in UTF-8"
