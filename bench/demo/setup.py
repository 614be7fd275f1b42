"""What the demo needs, and nothing else: `python -m bench.demo.setup FOLDER` installs it there.

The packages are a part of requirements.lock, with its hashes. Kafka is fetched and prepared while
pip works, as soon as there is the client that asks a broker whether it serves. With extras
(`make install`), amcast itself and what these need are installed instead. What has to be built is
built by the lock's setuptools, not by whatever is newest.
It runs before there is an environment, so it imports nothing that has to be installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path

from multicast.local.jars import JavaMissing, find_java

_ROOT = Path(__file__).parents[2]
EXTRAS = ("cli", "planner", "collectors")
_PREPARE = """
from multicast.local import cluster, installation
installation.install(cluster.DEFAULT_VERSION, progress=print)
"""


def entries() -> dict[str, str]:
    """Give the lock's entries by their packages."""
    text = (_ROOT / "requirements.lock").read_text(encoding="utf-8")
    return {block.partition("==")[0]: block for block in re.split(r"\n(?=\w)", text)}


def locked(extras: Iterable[str]) -> list[str]:
    """Give the lock's entries of what the extras and a bare installation need, directly or not."""
    blocks = entries()
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
    return [blocks[name].rstrip() for name in sorted(needed)]


def install(folder: Path) -> None:
    """Make an environment of the locked packages; raises `CalledProcessError` if pip fails."""
    venv.create(folder, clear=True, with_pip=True, symlinks=True)
    extras = list(EXTRAS)
    try:
        find_java()
    except JavaMissing:
        extras.append("java")
    packages = locked(extras)
    _pip(folder, [package for package in packages if package.startswith("kafka-python==")])
    # Where this fails, the demo tries again, and says why.
    preparing = subprocess.Popen(
        [folder / "bin" / "python", "-c", _PREPARE],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _pip(folder, packages)
    finally:
        preparing.wait()


def install_amcast(folder: Path, extras: Iterable[str]) -> None:
    """Install amcast and what the extras need; raises `CalledProcessError` if pip fails."""
    venv.create(folder, with_pip=True, symlinks=True)
    packages = locked(extras)
    _pip(folder, [entries()["setuptools"]])
    _pip(folder, packages)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps")
    subprocess.run([*pip, "--no-build-isolation", _ROOT], check=True)


def _pip(folder: Path, packages: Iterable[str]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as lock:
        lock.write("\n".join(packages))
        lock.flush()
        subprocess.run(
            [
                *(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"),
                # Bytecode of what is imported only: Python writes it then.
                *("--require-hashes", "--only-binary", ":all:", "--no-compile", "-r", lock.name),
                *("--no-binary", "pyspark", "--no-build-isolation"),  # it has no wheel
            ],
            check=True,
        )


if __name__ == "__main__":
    target, names = sys.argv[1], "".join(sys.argv[2:]).split(",")
    if target == "--lock":  # for an image, which has no checkout
        sys.stdout.write("\n".join(locked(names)) + "\n")
    elif names != [""]:
        install_amcast(Path(target), names)
    else:
        install(Path(target))
