"""Writing output files: an existing file is overwritten only with `--force`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class FileExists(Exception):
    """The output file exists; the message is one sentence that says how to go on."""


def write_text(path: Path, text: str, *, force: bool, instead: str = "") -> None:
    """Write a text file, in UTF-8.

    Raises `OSError`, and, without `force`, `FileExists` if the file exists with another text.
    `instead` is the option that names another file, for the error message.
    """
    if not force:
        refuse_existing(path, text, instead=instead)
    path.write_text(text, encoding="utf-8")


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
