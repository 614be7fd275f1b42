"""The command and its nouns: what is not installed is named, and so is a file without a place."""

import subprocess
import sys

import pytest

from tests.helpers.system import amcast

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "grpc":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from multicast.cli.main import main
main()
"""


def without_grpc(*arguments):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_verbs_that_need_a_package_that_is_not_installed_say_what_to_install():
    done = without_grpc("osn", "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "amcast: 'amcast osn run' needs the package grpc, which is not installed; "
        "run: pip install 'amcast[osn]'\n"
    )


def test_all_other_verbs_work_without_it():
    done = without_grpc("verify", "--help")
    assert done.returncode == 0, done.stderr
    assert "history" in done.stdout
    whole = without_grpc("--help")
    assert whole.returncode == 0, whole.stderr
    assert "topology" in whole.stdout
    assert "osn" not in whole.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("generate", "grafana", "--out"),
        ("generate", "compose", "--out"),
        ("topology", "plan", "INTERESTS", "--out"),
        ("bench", "run", "ci", "--out"),
        ("bench", "poster", "--out"),
        ("demo", "--history"),
        ("send", "-b", "127.0.0.1:1", "--to", "P1", "--history"),
        ("receive", "-b", "127.0.0.1:1", "-n", "C1", "--history"),
        ("osn", "demo", "--picture"),
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
