"""Files that commands write for a person: none that exists is overwritten without being asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class FileExists(Exception):
    """There is a file of that name already; the text is one sentence."""


def write_text(path: Path, text: str, *, force: bool, instead: str = "") -> None:
    """Write a text file; one that holds the same text already is left as it is.

    Raises `FileExists` where another file is there and `force` is not said, and `OSError`.
    `instead` names an option by which another name can be given.
    """
    if not force:
        refuse_existing(path, text, instead=instead)
    path.write_text(text, encoding="utf-8")


def refuse_existing_of(files: Iterable[Path | None], *, force: bool) -> None:
    """Raise `FileExists` where one of these is there, before a command works for nothing."""
    for file in files:
        if file is not None and not force:
            refuse_existing(file)


def refuse_existing(path: Path, text: str | None = None, *, instead: str = "") -> None:
    """Raise `FileExists` where there is a file of that name, with another text than this one.

    What is no regular file (a pipe, /dev/null) keeps nothing that could be lost.
    """
    if not path.is_file():
        return
    if text is not None and path.read_bytes() == text.encode():
        return
    other = f"give another name with {instead}" if instead else "give another name"
    raise FileExists(f"{path} exists already; {other}, or say --force to overwrite it")
