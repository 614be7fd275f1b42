"""The command: files without a place, full disks, closed streams, interrupts, wrong usage."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest

from multicast.cli import main
from tests.helpers.system import amcast
from tests.running.parts import sample


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("generate", "grafana", "--out"),
        ("generate", "compose", "--out"),
        ("topology", "plan", "INTERESTS", "--out"),
        ("bench", "run", "ci", "--out"),
        ("demo", "--history"),
        ("send", "-b", "127.0.0.1:1", "--to", "P1", "--history"),
        ("receive", "-b", "127.0.0.1:1", "-n", "C1", "--history"),
    ],
    ids=" ".join,
)
def test_a_file_that_cannot_be_written_is_one_sentence_before_anything_runs(words, tmp_path):
    (tmp_path / "file").touch()
    interests = tmp_path / "interests.toml"
    interests.write_text(
        'topic = "A"\npartitions = ["P1"]\n[[consumer]]\nname = "C1"\ninterest = ["P1"]\n'
    )
    below_a_file = tmp_path / "file" / "out.json"
    done = amcast(*(str(interests) if w == "INTERESTS" else w for w in words), str(below_a_file))
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    *_, last = done.stderr.splitlines()
    assert last.startswith("amcast: ")
    assert str(tmp_path / "file") in last
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_one_sentence():
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "multicast", "generate", "grafana"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=240, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "amcast: No space left on device\n"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("generate", "grafana"), marks=pytest.mark.campaign, id="generate grafana"),
        pytest.param(("--version",), id="--version"),
    ],
)
def test_a_reader_that_has_read_enough_is_no_error(words):
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does after its last line
    with subprocess.Popen(
        [sys.executable, "-m", "multicast", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        os.close(writer)
        _, said = running.communicate(timeout=240)
    assert (running.returncode, said) == (0, "")


def test_a_reader_that_has_read_enough_does_not_hide_a_failure():
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(
        [sys.executable, "-m", "multicast", "verify", "missing"],
        stdout=writer,
        stderr=subprocess.DEVNULL,
    ) as running:
        os.close(writer)
        assert running.wait(240) == 2


@pytest.mark.parametrize("closed", sample(["<&- >&- 2>&-", "<&-", ">&-", "2>&-"], of=1))
def test_a_stream_that_the_caller_has_closed_is_like_dev_null(closed):
    done = subprocess.run(
        f"exec '{sys.executable}' -m multicast generate grafana {closed}",
        shell=True, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (" >&-" not in f" {closed}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_cleans_up_and_ends_with_the_code_of_shells(number, code, tmp_path):
    history = tmp_path / "history"
    os.mkfifo(history)
    words = [sys.executable, "-m", "multicast", "verify", str(history)]
    # A background job of a shell ignores the signal, and so would the command that it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with running, history.open("w"):  # which waits until the command reads
        running.send_signal(number)
        _, said = running.communicate(timeout=240)
    assert (running.returncode, said) == (code, b"")


@pytest.mark.parametrize(("wish", "coloured"), [("", True), ("1", False)])
def test_a_terminal_gets_colours_unless_it_wants_none(wish, coloured, tmp_path):
    (tmp_path / "history").touch()
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "multicast", "verify", str(tmp_path / "history")]
    environment = {**os.environ, "NO_COLOR": wish}
    with subprocess.Popen(command, stdout=theirs, env=environment):
        os.close(theirs)
        said = os.read(ours, 1)
        with contextlib.suppress(OSError):  # a terminal that nobody has open any more
            while more := os.read(ours, 1 << 16):
                said += more
    os.close(ours)
    assert (b"not checked" in said, b"\x1b[" in said) == (True, coloured)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), None])
def test_a_full_folder_of_temporary_files_is_named(error, monkeypatch, capsys):
    def run(_):
        if error is not None:
            raise error
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/t']")

    monkeypatch.setattr(main, "_run", run)
    monkeypatch.setattr(main.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(SystemExit):
        main.main()
    said = capsys.readouterr().err
    assert f" in {tempfile.gettempdir()}, the folder of temporary files" in said


def test_wrong_usage_ends_with_2():
    done = amcast("topology", "plan", "--phi", "x")
    assert done.returncode == 2
    assert "Usage: amcast topology plan" in done.stderr
