"""Output files: a file holds the whole text, or what it held before."""

import os
import resource
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from topology.files import write_text

LONG = "x" * 10_000


@contextmanager
def full_disk():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file_and_no_stub(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("old")
    for file in (old, new):
        with full_disk(), pytest.raises(OSError, match=str(file)):
            write_text(file, LONG, force=True)
    assert list(tmp_path.iterdir()) == [old]
    assert old.read_text() == "old"


def test_an_overwritten_file_keeps_its_rights_and_a_link_to_it_stays_one(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_text(link, LONG, force=True)
    assert link.is_symlink()
    assert file.read_text() == LONG
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_pipe_and_a_device_are_written_in_place(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text(pipe, LONG, force=False)
    reader.join(60)
    assert read == [LONG]
    write_text(Path(os.devnull), LONG, force=False)
    assert not Path(os.devnull).is_file()


WRITER = """
import sys
from pathlib import Path
from topology.files import refuse_existing, write_text

print("printed before")
name = Path(sys.argv[1])
refuse_existing(name)
write_text(name, "written\\n", force=False)
print("printed after")
"""


@pytest.mark.parametrize("mode", ["wb", "ab"])
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_a_redirected_stdout_is_written_in_its_place_and_kept(tmp_path, name, mode):
    if name == "link":
        (tmp_path / name).symlink_to("/dev/stdout")
        name = str(tmp_path / name)
    out = tmp_path / "out"
    out.write_text("there\n")
    with out.open(mode) as file:
        inode = os.fstat(file.fileno()).st_ino
        done = subprocess.run(
            [sys.executable, "-c", WRITER, name],
            stdout=file, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept = "there\n" if mode == "ab" else ""
    assert out.read_text() == f"{kept}printed before\nwritten\nprinted after\n"
    assert out.stat().st_ino == inode
    assert {file.name for file in tmp_path.iterdir()} <= {"out", "link"}
