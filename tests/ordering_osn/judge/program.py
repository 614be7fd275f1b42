"""Fabric's own packages, as the program of `main.go` that accepts or refuses cases."""

import functools
import subprocess
import tempfile
from pathlib import Path

BUILD_S, JUDGE_S = 900, 300
MSP, ROLE, CONFIG, UPDATE, PROPOSAL = b"m", b"r", b"c", b"u", b"p"


@functools.cache
def built():
    """The program. The first run fetches its modules from Go's proxy."""
    program = Path(tempfile.gettempdir()) / f"fabric-judge-{Path(__file__).stat().st_mtime_ns}"
    subprocess.run(
        ["go", "build", "-o", program, "."], cwd=Path(__file__).parent, timeout=BUILD_S, check=True
    )
    return program


def judged(kind, cases):
    """Fabric's verdict on each case: "" where it accepts, else its reason."""
    sent = b"".join(kind + len(case).to_bytes(4, "big") + case for case in cases)
    done = subprocess.run([built()], input=sent, capture_output=True, timeout=JUDGE_S, check=True)
    verdicts = done.stdout.decode().splitlines()
    assert len(verdicts) == len(cases)
    assert all(verdict.startswith(("accepted", "refused: ")) for verdict in verdicts)
    return [verdict.removeprefix("accepted").removeprefix("refused: ") for verdict in verdicts]
