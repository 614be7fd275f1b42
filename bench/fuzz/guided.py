"""Coverage-guided fuzzing: inputs that reach new code are kept and mutated again.

    python -m bench.fuzz.guided --target 'control statement' --seconds 600 --corpus FOLDER

Needs atheris (libFuzzer for Python), which is not a dependency of this project: `pip install
atheris`. A failing input is written to the current folder as `crash-…`, and the exit code is not 0.
The targets and their allowed exceptions are the same as in `campaign.py`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from random import Random
from typing import Any

INSTRUMENTED = ("multicast", "topology", "ordering_osn", "collectors", "bench.pipeline.rule")


def main() -> int:
    """Run the campaign; libFuzzer ends the process itself."""
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz.guided", description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, required=True, help="a folder for kept inputs")
    options = parser.parse_args()
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        sys.stderr.write("amcast: atheris is not installed; run 'pip install atheris' first\n")
        return 2
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        table = importlib.import_module("bench.fuzz.table").table
        mutation = importlib.import_module("bench.fuzz.mutation")
    known = {target.name: target for target in table()}
    if options.target not in known:
        sys.stderr.write(f"amcast: no target {options.target!r}; known: {', '.join(known)}\n")
        return 2
    target = known[options.target]
    options.corpus.mkdir(parents=True, exist_ok=True)
    for number, raw in enumerate(target.valid):
        (options.corpus / f"valid-{number}").write_bytes(raw)

    def changed(raw: bytes, size_max: int, seed: int) -> bytes:
        rng = Random(seed)  # noqa: S311
        if rng.getrandbits(2) == 0:
            kept: bytes = atheris.Mutate(raw, size_max)
            return kept
        made: bytes = mutation.mutated(rng, [raw, *target.valid], target.shape)
        return made[:size_max]

    arguments = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        "-max_len=65536",
        str(options.corpus),
    ]
    atheris.Setup(arguments, target.holds, custom_mutator=changed)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
