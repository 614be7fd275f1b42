"""The wheel and the source distribution: built, compared, installed in an empty environment, used.

Nothing is fetched but pyright: the build uses this environment's setuptools, and what the wheel
requires is copied from this environment.
"""

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.system.clients import installed as installed_clients

ROOT = Path(__file__).parents[2]
BARE = {"kafka-python", "crc32c", "confluent-kafka", "lz4", "python-snappy", "cramjam", "zstandard"}
pytestmark = pytest.mark.campaign
BUILD = "from setuptools import build_meta; build_meta.build_{}({!r})"
PROGRAM = """
import sys
from amcast import Consumer, Producer

bootstrap, topic = sys.argv[1:]
with Producer(bootstrap, topic=topic) as producer:
    receipt = producer.multicast(b"from a bare installation", to={"P1", "P2"})
    message_id = receipt.accepted(timeout=60)
    receipt.ordered(timeout=60)
with Consumer(bootstrap, topic=topic, interest={"P2", "P3"}) as consumer:
    for message in consumer:
        assert message.message_id == message_id
        print(message.payload.decode())
        break
"""
TYPED = """
from amcast import Producer, aio

reveal_type(Producer)
reveal_type(aio.AsyncConsumer)
Producer(1, topic="A")
"""


def run(*command, cwd, expected=0):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == expected, f"{done.stdout}\n{done.stderr}"
    return done


def build(kind, source, out):
    out.mkdir()
    run(sys.executable, "-c", BUILD.format(kind, str(out)), cwd=source)
    (file,) = out.iterdir()
    return file


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the tracked files, so that a build leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    listed = run("git", "ls-files", "-z", cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return build("wheel", source, tmp_path_factory.mktemp("built") / "wheel")


def environment(folder, *wheels):
    """An environment that holds wheels, and of this environment what bare amcast requires."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in BARE:
        for file in distribution(name).files:
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), packages / file)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", *wheels, cwd=folder)
    assert "No broken requirements" in run(*pip, "check", cwd=folder).stdout
    return folder


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("bare"), wheel)


def test_the_wheel_holds_five_packages_with_types_and_no_benchmarks(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert folders == {"amcast", "multicast", "topology", "collectors", "ordering_osn"}
    assert {f"{folder}/py.typed" for folder in folders} <= set(names)


def test_the_wheel_requires_what_the_bare_installation_needs(bare):
    (packages,) = bare.glob("lib/python*/site-packages")
    (metadata,) = packages.glob("amcast-*.dist-info/METADATA")
    lines = metadata.read_text(encoding="utf-8").splitlines()
    required = [
        line for line in lines if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert len(required) == len(BARE) - 1  # python-snappy requires cramjam
    assert "License-Expression: Apache-2.0" in lines
    classifiers = {line.removeprefix("Classifier: ") for line in lines}
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)} < classifiers
    assert "Typing :: Typed" in classifiers


def test_the_source_distribution_builds_the_same_wheel(source, wheel, tmp_path):
    archive = build("sdist", source, tmp_path / "sdist")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("amcast-*")
    again = build("wheel", unpacked, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert {i.filename: i.CRC for i in first.infolist()} == {
            i.filename: i.CRC for i in second.infolist()
        }


def test_a_bare_installation_multicasts_and_delivers(bare, amcast_topic, tmp_path):
    topic = amcast_topic(
        {"consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}}, "destinations": [{"P1", "P2"}]}
    )
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = run(bare / "bin" / "python", program, topic.bootstrap, topic.topic, cwd=tmp_path)
    assert done.stdout == "from a bare installation\n"


def test_the_command_of_a_bare_installation_names_the_extra(bare, tmp_path):
    assert run(bare / "bin" / "amcast", "--version", cwd=tmp_path).stdout
    done = run(bare / "bin" / "amcast", "collectors", "status", cwd=tmp_path, expected=2)
    assert done.stderr == (
        "amcast: this needs the package typer, which is not installed; "
        "run: pip install 'amcast[cli]'\n"
    )


@pytest.fixture(scope="module")
def editable(source, tmp_path_factory):
    """An environment with an editable installation: one line with the folder's path."""
    folder = tmp_path_factory.mktemp("editable")
    made = environment(folder / "environment", build("editable", source, folder / "built"))
    (packages,) = made.glob("lib/python*/site-packages")
    (path,) = packages.glob("__editable__*")
    assert path.read_text(encoding="utf-8").strip() == str(source)
    return made


@pytest.fixture(params=["bare", "editable"])
def installed(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def project(tmp_path):
    """Another project, which uses amcast, with one mistake."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "program.py").write_text(TYPED, encoding="utf-8")
    return folder


def test_mypy_sees_the_types_from_another_project(installed, project):
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable")
    done = run(*mypy, installed / "bin" / "python", "program.py", cwd=project, expected=1)
    lines = done.stdout.splitlines()
    assert "-> multicast.producing.producer.Producer" in lines[0]
    assert "-> multicast.aio.consumer.AsyncConsumer" in lines[1]
    assert 'Argument 1 to "Producer" has incompatible type "int"' in lines[2]
    assert lines[3].startswith("Found 1 error")


@pytest.mark.needs("npm")
def test_pyright_sees_the_types_from_another_project(installed, project):
    pyright = (*installed_clients.pyright(), "--pythonpath")
    done = run(*pyright, installed / "bin" / "python", "program.py", cwd=project, expected=1)
    lines = done.stdout.splitlines()
    assert 'Type of "Producer" is "type[Producer]"' in lines[1]
    assert 'Type of "aio.AsyncConsumer" is "type[AsyncConsumer]"' in lines[2]
    assert 'cannot be assigned to parameter "bootstrap" of type "str"' in lines[3]
    assert lines[-1] == "1 error, 0 warnings, 2 informations"
