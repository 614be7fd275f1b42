"""The three clients and pyright, fetched from their registries once and kept in the user's cache.

Out: a command line for each, to which the program's arguments are appended. Everything is pinned by
checksum: `java/jars.lock`, `package-lock.json` of `javascript` and `pyright`,
`python/requirements.lock`. What was fetched for other pins is left alone: the folder's name holds a
digest of the lock.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from multicast.local.cluster import DEFAULT_VERSION
from multicast.local.jars import broker_jars, cache_directory, find_java, kept_jars, read_lock
from multicast.local.process import run_bounded

HERE = Path(__file__).parent
NEEDS = {"java": ["jdk"], "javascript": ["npm"], "python": []}  # see tests/running/needs.py
FETCH_TIMEOUT_S = 240.0


def run(command):
    code, output = run_bounded(command, timeout_s=FETCH_TIMEOUT_S)
    assert code == 0, f"{command[0]} ended with {code}:\n{output}"


@contextlib.contextmanager
def kept(client, *locks):
    """Give (folder, whether it is complete): one process at a time, complete when it ends well."""
    digest = hashlib.sha256(b"".join((HERE / client / lock).read_bytes() for lock in locks))
    folder = cache_directory() / f"osn-client-{client}-{digest.hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = folder / "complete"
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        yield folder, complete.exists()
        complete.touch()


def java():
    """Java compiles the program as it starts it: a JDK is needed, not only a JRE."""
    machine = find_java()
    lock = read_lock((HERE / "java/jars.lock").read_text(encoding="utf-8"))
    name = "osn-client-java-fabric-sdk-java-2.2.26"
    jars = kept_jars(lock, name, title="Fabric's Java SDK", java=machine, progress=lambda _: None)
    path = os.pathsep.join(os.fspath(jar) for jar in jars)
    return [os.fspath(machine.executable), "-cp", path, os.fspath(HERE / "java/Client.java")]


def node_modules(program):
    """Give the folder of packages that npm fetched by the program's lock."""
    with kept(program, "package.json", "package-lock.json") as (folder, complete):
        if not complete:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / program / name, folder)
            run(["npm", "ci", "--ignore-scripts", "--prefix", os.fspath(folder)])
    return folder / "node_modules"


def javascript():
    path = f"NODE_PATH={node_modules('javascript')}"
    return ["env", path, "node", os.fspath(HERE / "javascript/client.js")]


def kafkajs(*arguments):
    """Read copies by kafkajs; give what it prints."""
    path = f"NODE_PATH={node_modules('kafkajs')}"
    command = ["env", path, "node", os.fspath(HERE / "kafkajs/reader.js"), *arguments]
    return _printed(command)


def kafka_clients(*arguments):
    """Read copies by Kafka's own client, from the jars of the local brokers."""
    machine = find_java()
    jars = broker_jars(DEFAULT_VERSION, java=machine, progress=lambda _: None)
    path = os.pathsep.join(os.fspath(jar) for jar in jars)
    reader = os.fspath(HERE / "java/Copies.java")
    return _printed([os.fspath(machine.executable), "-cp", path, reader, *arguments])


def _printed(command):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def pyright():
    return [shutil.which("node"), os.fspath(node_modules("pyright") / "pyright/index.js")]


def python():
    with kept("python", "requirements.lock") as (folder, complete):
        if not complete:
            run([sys.executable, "-m", "venv", os.fspath(folder)])
            run(
                [
                    *(os.fspath(folder / "bin/python"), "-m", "pip", "install", "--quiet"),
                    *("--no-deps", "--require-hashes", "--only-binary", ":all:"),
                    *("--no-binary", "hkdf", "--no-binary", "lark-parser"),
                    *("-r", os.fspath(HERE / "python/requirements.lock")),
                ]
            )
    return [os.fspath(folder / "bin/python"), os.fspath(HERE / "python/client.py")]
