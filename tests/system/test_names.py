"""The package `amcast`, a user's names that are also ours, and extras that are not installed."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import amcast
import multicast
from multicast import errors

ROOT = Path(__file__).parents[2]
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


IMPORTED_AS = {  # where it is not the name of the package
    "faust-streaming": ["faust", "mode"],
    "grpcio": ["grpc"],
    "hyperledger-fabric-protos": ["fabric_protos"],
    "opentelemetry-api": ["opentelemetry"],
}


def packages_of(extra):
    """Name the packages that an extra installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {re.match("[a-z0-9-]+", line)[0] for line in project["optional-dependencies"][extra]}


def run(*words, folder):
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def without(package, program, folder):
    return run("-c", f"{WITHOUT.format(packages=[package])}\n{program}", folder=folder)


def test_amcast_gives_the_very_classes_of_multicast():
    assert set(amcast.__all__) == {*multicast.__all__, "aio", "testing"}
    for name in multicast.__all__:
        assert getattr(amcast, name) is getattr(multicast, name)


@pytest.mark.parametrize("name", ["aio", "faust", "metrics", "spark", "testing"])
def test_a_module_of_amcast_gives_the_names_of_multicast_s(name):
    modules = {file.stem for file in (ROOT / "amcast").glob("[a-z]*.py")}
    assert name in modules
    assert len(modules) == 5, "each is in this list"
    ours, theirs = (import_module(f"{package}.{name}") for package in ("amcast", "multicast"))
    assert ours.__all__ == theirs.__all__
    assert all(getattr(ours, each) is getattr(theirs, each) for each in ours.__all__)


def test_all_errors_are_exported():
    public = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.AmcastError)
    }
    assert len(public) > 15
    assert public <= set(multicast.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    for package in (amcast, multicast):
        with pytest.raises(AttributeError, match="has no attribute 'Prodcer'"):
            package.Prodcer  # noqa: B018


def test_the_version_is_the_one_of_the_distribution():
    line = next(
        line for line in (ROOT / "pyproject.toml").read_text().splitlines() if "version =" in line
    )
    assert line == f'version = "{amcast.__version__}"'
    assert multicast.__version__ == amcast.__version__


def test_importing_the_classes_loads_no_kafka_client_and_no_extra(tmp_path):
    heavy = ["kafka", "confluent_kafka", "faust", "pulp", "networkx", "typer", "rich", "asyncio"]
    program = f"""
import sys
from amcast import Producer, Consumer
print([name for name in {heavy} if name in sys.modules])
"""
    done = run("-c", program, folder=tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.fixture
def users_folder(tmp_path):
    """A user's project whose files have the names of our packages."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    (tmp_path / "collectors.py").write_text("mine = 1\n")
    return tmp_path


def test_a_users_collectors_and_bench_do_not_hinder_producers_and_consumers(users_folder):
    (users_folder / "script.py").write_text(
        "import bench, collectors\nfrom amcast import Producer\nprint(collectors.mine)\n"
    )
    done = run("script.py", folder=users_folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_users_own_bench_is_not_taken_for_ours(users_folder):
    of_benches = run("-m", "amcast", "bench", "suite", folder=users_folder)
    assert (of_benches.returncode, of_benches.stdout) == (2, "")
    assert of_benches.stderr.startswith("amcast: 'amcast bench suite' is not part of the installed")
    assert run("-m", "amcast", "verify", "--help", folder=users_folder).returncode == 0


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("pulp", "multicast.testing", "planner"),
        ("faust", "collectors.app", "collectors"),
        ("faust", "amcast.faust", "collectors"),
        ("prometheus_client", "multicast.metrics.clients", "collectors"),
        ("cryptography", "ordering_osn.identity.certificates", "osn"),
        ("fabric_protos", "ordering_osn.protos", "osn"),
    ],
)
def test_a_module_whose_package_is_absent_names_the_extra(package, module, extra, tmp_path):
    done = without(package, f"import {module}", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"topology.MissingExtra: this needs the package {package}, which is not installed; "
        f"run: pip install 'amcast[{extra}]'"
    )


@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        ("cli", [f"multicast.cli.{name}" for name in ("main", "send", "receive", "local")]),
        ("planner", ["topology.cli", "topology.planner.solver", "multicast.testing"]),
        (
            "collectors",
            [
                "collectors.app",
                *(f"collectors.cli.{verb}" for verb in ("main", "doctor", "explain", "ui")),
            ],
        ),
        ("osn", ["ordering_osn.cli.main", "ordering_osn.node.serving"]),
    ],
)
def test_the_packages_of_an_extra_suffice_for_it(extra, modules, tmp_path):
    imports = {name: IMPORTED_AS.get(name, [name.replace("-", "_")]) for name in packages_of("all")}
    own = packages_of(extra)
    absent = [module for name, names in imports.items() if name not in own for module in names]
    program = WITHOUT.format(packages=absent)
    program += "import os\nos.environ.update(AMCAST_BOOTSTRAP='127.0.0.1:9', AMCAST_TOPIC='A')\n"
    done = run("-c", program + f"import {', '.join(modules)}", folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("typer", ["--help"], "cli"),
        ("pulp", ["topology", "plan", "interests.toml"], "planner"),
        ("faust", ["collectors", "run", "-b", "127.0.0.1:9", "-t", "A"], "collectors"),
        ("prometheus_client", ["osn", "run"], "osn"),
        ("grpc", ["osn", "run"], "osn"),
    ],
)
def test_a_verb_whose_package_is_absent_ends_with_2_and_names_the_extra(
    package, words, extra, tmp_path
):
    program = f"import sys\nsys.argv[1:] = {words}\nfrom amcast.__main__ import main\nmain()"
    done = without(package, program, tmp_path)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("amcast: ")
    assert f"the package {package}, which is not installed; run: " in done.stderr
    assert done.stderr.endswith(f"pip install 'amcast[{extra}]'\n")
    assert done.stderr.count("\n") == 1


def test_the_extra_all_holds_what_the_other_extras_of_users_hold():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    of_users = {name: set(extras[name]) for name in extras.keys() - {"all", "bench", "dev"}}
    assert set(extras["all"]) == set().union(*of_users.values())
    page = (ROOT / "docs" / "install.md").read_text()
    assert [name for name in extras if f"| `{name}` |" not in page] == []
