"""What the demo needs, and nothing else: `python -m bench.demo_setup FOLDER` installs it there.

The packages are a part of requirements.lock, with its hashes; meanwhile Kafka's jars are fetched.
It runs before there is an environment, so it imports nothing that has to be installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import tomllib
import venv
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from multicast.errors import AmcastError
from multicast.local.cluster import DEFAULT_VERSION
from multicast.local.jars import Java, JavaMissing, broker_jars, find_java

_ROOT = Path(__file__).parent.parent
EXTRAS = ("cli", "planner", "collectors")


def locked(extras: Iterable[str]) -> str:
    """Give the lock's lines of what the extras and a bare installation need, directly or not."""
    text = (_ROOT / "requirements.lock").read_text(encoding="utf-8")
    blocks = {block.partition("==")[0]: block for block in re.split(r"\n(?=\w)", text)}
    # pip-compile writes below each package who needs it: `# via x`, or a line for each.
    parents = {
        name: set(re.findall(r"^    #(?: via|  ) +([\w.-]+)", block, re.MULTILINE))
        for name, block in blocks.items()
    }
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    needed: set[str] = set()
    found = {re.split(r"[^\w.-]", line)[0] for line in lines}
    while found:
        needed |= found
        found = {name for name in blocks if parents[name] & needed} - needed
    return "\n".join(blocks[name].rstrip() for name in sorted(needed)) + "\n"


def install(folder: Path, extras: Iterable[str]) -> None:
    """Make an environment of the locked packages; raises `CalledProcessError` if pip fails."""
    venv.create(folder, clear=True, with_pip=True, symlinks=True)
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as lock:
        lock.write(locked(extras))
        lock.flush()
        subprocess.run(
            [
                *(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"),
                # Bytecode of what is imported only: Python writes it then.
                *("--require-hashes", "--only-binary", ":all:", "--no-compile", "-r", lock.name),
            ],
            check=True,
        )


def _fetch(java: Java) -> None:
    with suppress(AmcastError):  # the demo then tries again, and says why it fails
        broker_jars(DEFAULT_VERSION, java=java, progress=lambda _: None)


def main() -> None:
    """Install and fetch at the same time."""
    extras = list(EXTRAS)
    try:
        fetching = threading.Thread(target=_fetch, args=(find_java(),))
        fetching.start()
    except JavaMissing:
        extras.append("java")
    install(Path(sys.argv[1]), extras)


if __name__ == "__main__":
    main()
