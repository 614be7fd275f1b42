"""The command and its nouns: what is not installed is named, and hides nothing else."""

import subprocess
import sys

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
