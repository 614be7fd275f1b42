"""The rules of this code that a test can check, such as imports, pure cores, banned calls, lengths.

A room is a top-level package; a door is the only place that imports a big foreign package.
"""

import ast
import functools
import gc
import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.running import parts
from tests.running.sizes import CEILINGS, ceilings, line, sizes

ROOT = Path(__file__).resolve().parent.parent
# Each room, and the other rooms that it may import.
ROOMS = {
    "topology": set(),
    "multicast": {"topology"},
    "collectors": {"multicast", "topology"},
    "ordering_osn": {"multicast", "topology"},
    "bench": {"multicast", "topology", "collectors", "ordering_osn"},
    "amcast": {"multicast"},
    "examples": {"amcast", "multicast"},
    "tests": {"amcast", "multicast", "topology", "collectors", "ordering_osn", "bench", "examples"},
}
# Inside a room: the lowest layer comes first, and each imports only itself and earlier ones. A file
# belongs to the layer that names the longest prefix of its module.
LAYERS = {
    "topology": [
        ["topology.documents", "topology.plan_fields", "topology.tree", "topology.interests"],
        ["topology.planner"],
        ["topology.proof"],
        ["topology"],
    ],
    "multicast": [
        ["multicast.errors"],
        ["multicast.drivers", "multicast.messages"],
        ["multicast.control", "multicast.order"],
        ["multicast"],
        ["multicast.tables"],
        ["multicast.faust", "multicast.spark", "multicast.testing"],
        ["multicast.local"],
        ["multicast.cli", "multicast.__main__"],
    ],
    "collectors": [
        ["collectors.change_pauses", "collectors.core", "collectors.placement"],
        ["collectors.engine"],
        ["collectors.doctor", "collectors.reconfiguration"],
        ["collectors.testing"],
        ["collectors"],
        ["collectors.cli"],
    ],
    "ordering_osn": [
        ["ordering_osn.protos", "ordering_osn.quoting", "ordering_osn.wire"],
        ["ordering_osn.identity"],
        ["ordering_osn.chain"],
        ["ordering_osn.config"],
        ["ordering_osn.ledger"],
        ["ordering_osn.api"],
        ["ordering_osn.client"],
        ["ordering_osn.node"],
        ["ordering_osn.cli"],
    ],
    "bench": [
        ["bench.baselines", "bench.harness", "bench.simulation"],
        ["bench.cli", "bench.comparison"],
        ["bench"],
    ],
}  # fmt: skip
# Big foreign packages, and the only place where each is imported (tests apart).
DOORS = {
    "kafka": ("multicast/drivers/kafka/", "bench/nemesis/faults/tickets.py"),
    "confluent_kafka": ("multicast/drivers/librdkafka_reader/", "examples/cdc/"),
    "faust": ("collectors/app.py", "multicast/faust/", "examples/faust_totals/"),
    "mode": (
        *("collectors/app.py", "collectors/copiers.py", "collectors/supervisor.py"),
        "multicast/faust/",
    ),
    "pulp": ("topology/planner/integer_program.py",),
    "networkx": ("topology/draw.py",),
    "cryptography": ("ordering_osn/identity/certificates.py",),
    "fabric_protos": ("ordering_osn/protos.py",),
    "google": ("ordering_osn/protos.py", "ordering_osn/wire/multichain_pb2.py"),
    "grpc": ("ordering_osn/api/grpc_client.py", "ordering_osn/api/grpc_server.py"),
    "opentelemetry": ("multicast/tracing/",),
    "prometheus_client": ("multicast/metrics/", "ordering_osn/api/metrics.py"),
    "pyspark": ("bench/pipeline/", "examples/accounts/history.py", "multicast/spark/"),
    "matplotlib": ("bench/report/report.py",),
    "hdrh": ("bench/harness/histogram.py",),
}
# No I/O, no clock, no randomness: the same calls give the same results.
PURE = [
    "bench/osn/bank.py",
    "bench/osn/judge.py",
    "bench/osn/money.py",
    "bench/report/targets.py",
    "bench/nemesis/frames.py",
    "bench/nemesis/recovery.py",
    "bench/nemesis/waits.py",
    "bench/report/page.py",
    "collectors/core/actions.py",
    "collectors/change_pauses.py",
    "collectors/core/entry_counts.py",
    "collectors/core/collector.py",
    "collectors/adoption/facts.py",
    "collectors/doctor/facts.py",
    "collectors/explain/facts.py",
    "collectors/live/facts.py",
    "collectors/live/ordered_runs.py",
    "collectors/doctor/checks.py",
    "collectors/placement.py",
    "collectors/core/epoch_change.py",
    "collectors/core/standby.py",
    "multicast/verification/acyclic.py",
    "multicast/verification/audit.py",
    "multicast/conditional/condition.py",
    "multicast/conditional/judge.py",
    "multicast/conditional/judges.py",
    "multicast/producing/keyed/destinations.py",
    "multicast/verification/completeness.py",
    "multicast/control/checkpoints.py",
    "multicast/control/codecs.py",
    "multicast/control/documents.py",
    "multicast/control/sources.py",
    "multicast/control/state.py",
    "multicast/control/topics.py",
    "multicast/consuming/activity.py",
    "multicast/consuming/batches.py",
    "multicast/consuming/cursor.py",
    "multicast/consuming/delivery.py",
    "multicast/consuming/entries_read.py",
    "multicast/errors.py",
    "multicast/drivers/kafka/fetch_request.py",
    "multicast/drivers/appender/partition_appends.py",
    "multicast/drivers/kafka/appender/request.py",
    "multicast/drivers/appender/record_batch.py",
    "multicast/history.py",
    "multicast/producing/keyed/partitioners.py",
    "multicast/verification/index.py",
    "multicast/drivers/protocol.py",
    "multicast/messages.py",
    "multicast/metrics/counts.py",
    "multicast/metrics/families.py",
    "multicast/order/runs.py",
    "multicast/properties.py",
    "multicast/consuming/subscription.py",
    "multicast/workers/schedule.py",
    "collectors/core/balance.py",
    "collectors/core/collector_core.py",
    "multicast/order/records.py",
    "multicast/producing/own_order.py",
    "multicast/producing/ticket_book.py",
    "collectors/core/restored_runs.py",
    "collectors/core/relay.py",
    "multicast/order/rule.py",
    "multicast/order/stream.py",
    "multicast/verification/replay.py",
    "multicast/verification/report.py",
    "multicast/verification/window.py",
    "ordering_osn/api/multi/merge.py",
    "ordering_osn/api/multi/signed_request.py",
    "ordering_osn/api/multi/status.py",
    "ordering_osn/api/responses.py",
    "ordering_osn/chain/blockcutter.py",
    "ordering_osn/chain/blocks.py",
    "ordering_osn/config/capabilities.py",
    "ordering_osn/chain/bundles/bundle.py",
    "ordering_osn/chain/bundles/intake.py",
    "ordering_osn/chain/bundles/log_records.py",
    "ordering_osn/chain/bundles/metadata.py",
    "ordering_osn/chain/bundles/parts.py",
    "ordering_osn/chain/bundles/rule.py",
    "ordering_osn/chain/bundles/saved.py",
    "ordering_osn/chain/bundles/wire_format.py",
    "ordering_osn/chain/chain.py",
    "ordering_osn/chain/channel_rules.py",
    "ordering_osn/config/channel_config.py",
    "ordering_osn/config/configtx.py",
    "ordering_osn/config/channel_creation.py",
    "ordering_osn/chain/envelopes.py",
    "ordering_osn/node/bundles/admission.py",
    "ordering_osn/node/bundles/fates.py",
    "ordering_osn/node/cut_timer.py",
    "ordering_osn/node/filters.py",
    "ordering_osn/identity/msp.py",
    "ordering_osn/config/maintenance.py",
    "ordering_osn/node/order_watch.py",
    "ordering_osn/config/policies.py",
    "ordering_osn/chain/records.py",
    "ordering_osn/quoting.py",
    "ordering_osn/chain/state.py",
    "ordering_osn/api/seek.py",
    "ordering_osn/chain/transactions.py",
    "topology/check.py",
    "topology/planner/annealing.py",
    "topology/planner/assembly.py",
    "topology/proof.py",
    "topology/changes.py",
    "topology/advice.py",
    "topology/hysteresis.py",
    "topology/repairs.py",
    "bench/measured_work.py",
    "topology/work.py",
    "topology/planner/heuristic.py",
    "topology/acyclicity.py",
    "topology/planner/hypergraph.py",
    "topology/planner/reduction.py",
    "topology/interests.py",
    "topology/planner/cost.py",
    "topology/planner/exact.py",
    "topology/planner/movable_tree.py",
    "topology/plan_fields.py",
    "topology/tree.py",
    "topology/safety.py",
]
IMPURE = {
    "asyncio", "kafka", "confluent_kafka", "logging", "os", "random", "secrets", "socket",
    "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
BANNED_CALLS = {
    "time.sleep": "wait for what you wait for, with a deadline",
    "hash": "a digest; hash() differs from run to run",
    "eval": "a parser",
    "print": "typer.echo for data, stderr for progress",
    # Its error would end the package's loop for good (docs/hazards.md).
    ".refresh_metadata": "Connection.refresh",
}
# Names that were used for hundreds of things and say nothing about any of them.
SAYS_NOTHING = {"at", "found", "one", "told", "asked", "said"}
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
FOLDER_FILES_MAX = 20
SOURCES = sorted(
    path.relative_to(ROOT).as_posix() for room in ROOMS for path in (ROOT / room).rglob("*.py")
)


def setup_module():
    gc.disable()  # a search for garbage would walk through the trees of all files, again and again


def teardown_module():
    tree.cache_clear()
    nodes.cache_clear()
    gc.enable()


@functools.cache
def tree(source: str) -> ast.Module:
    return ast.parse((ROOT / source).read_text(encoding="utf-8"), source)


@functools.cache
def nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(tree(source)))


@functools.cache
def imports(source: str, *, parts: bool = False) -> list[tuple[int, str]]:
    """All modules that a file imports anywhere; with `parts`, the imported names, too."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((node.lineno, node.module or ""))
            if parts:
                found += [(node.lineno, f"{node.module}.{name.name}") for name in node.names]
    return found


def spelled(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{spelled(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room):
    wrong = [
        f"{source}:{line} imports {name}"
        for source in SOURCES
        if source.startswith(f"{room}/")
        for line, name in imports(source)
        if name.split(".")[0] in ROOMS.keys() - ROOMS[room] - {room}
    ]
    assert not wrong, wrong


def layer(module: str, layers: list[list[str]]) -> int:
    """The index of the layer that names the longest prefix of a module."""
    named = [
        (len(name), place)
        for place, names in enumerate(layers)
        for name in names
        if f"{module}.".startswith(f"{name}.")
    ]
    return max(named)[1]


@pytest.mark.parametrize("room", LAYERS)
def test_no_arrow_inside_a_room_points_upward(room):
    layers = LAYERS[room]
    wrong = [
        f"{source}:{line} imports {name}"
        for source in SOURCES
        if source.startswith(f"{room}/") and source != f"{room}/__init__.py"
        for line, name in imports(source)
        if name.startswith(f"{room}.")
        and layer(name, layers) > layer(source.removesuffix(".py").replace("/", "."), layers)
    ]
    assert not wrong, wrong


def test_no_files_import_one_another_in_a_circle():
    """Not for types either: a name that two files need belongs below both."""
    left = {}
    known = set(SOURCES)
    for source in SOURCES:
        names = {name for _, name in imports(source, parts=True)}
        left[source] = known & {f"{name.replace('.', '/')}.py" for name in names}
    while free := [source for source, needs in left.items() if not needs & left.keys()]:
        for source in free:
            del left[source]
    assert not left, f"in circles, or above them: {sorted(left)}"


@pytest.mark.parametrize("package", DOORS)
def test_a_big_package_is_imported_at_its_door_only(package):
    wrong = [
        f"{source}:{line}"
        for source in SOURCES
        if not source.startswith(("tests/", *DOORS[package]))
        for line, name in imports(source)
        if name.split(".")[0] == package
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("source", PURE)
def test_a_core_is_pure(source):
    wrong = [f"{line}: {name}" for line, name in imports(source) if name.split(".")[0] in IMPURE]
    assert not wrong, wrong


def test_no_core_iterates_a_set():
    wrong = []
    for source in PURE:
        for node in nodes(source):
            loops = [node.iter] if isinstance(node, ast.For | ast.comprehension) else []
            for what in loops:
                called = spelled(what.func) if isinstance(what, ast.Call) else ""
                if isinstance(what, ast.Set | ast.SetComp) or called in ("set", "frozenset"):
                    wrong.append(f"{source}:{what.lineno}")
    assert not wrong, wrong


@pytest.mark.parametrize("name", BANNED_CALLS)
def test_a_banned_call_stands_nowhere(name):
    wrong = [
        f"{source}:{node.lineno}"
        for source in SOURCES
        for node in nodes(source)
        if (isinstance(node, ast.Call) and spelled(node.func) == name)
        or (isinstance(node, ast.Attribute) and f".{node.attr}" == name)
    ]
    assert not wrong, f"use {BANNED_CALLS[name]}: {wrong}"


def test_the_table_of_what_is_the_campaigns_names_what_is_there():
    assert parts.named_in_vain() == []


def test_nothing_is_mocked_and_no_test_is_skipped():
    pattern = re.compile(r"unittest\.mock|\bMock\(|pytest\.skip\(|mark\.(skip|skipif|xfail)")
    wrong = [
        f"{source}:{number}"
        for source in SOURCES
        if source.startswith("tests/") and source != "tests/test_tidy.py"
        for number, line in enumerate((ROOT / source).read_text().splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not wrong, wrong


def test_files_and_functions_fit_on_a_few_screens():
    wrong = []
    for source in SOURCES:
        lines = len((ROOT / source).read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES_MAX:
            wrong.append(f"{source} has {lines} lines")
        for node in nodes(source):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    wrong.append(f"{source}:{node.lineno} {node.name} has {length} lines")
    assert not wrong, wrong


def test_no_room_outgrows_its_ceiling_which_a_commit_of_its_own_sets():
    most = ceilings()
    assert {what: size for what, size in sizes().items() if size > most[what]} == {}, line()
    last = ["git", "log", "-1", "--format=%p", "--name-only", "--full-diff", "--", CEILINGS]
    told = subprocess.run(last, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    parents, named = told.split("\n", 1)
    # Where all history is in one commit, nobody can say.
    assert not parents or named.split() == [CEILINGS], "beside ceilings a commit changes nothing"


def test_no_folder_holds_more_files_than_one_remembers():
    counts = Counter(
        source.rpartition("/")[0] for source in SOURCES if not source.endswith("/__init__.py")
    )
    wrong = {folder: count for folder, count in counts.items() if count > FOLDER_FILES_MAX}
    assert not wrong, wrong


def test_no_tracked_file_is_heavier_than_256_kb():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    assert listed.returncode == 0, listed.stderr.decode()
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(files) > 300
    assert [f.name for f in files if f.exists() and f.stat().st_size > 256_000] == []


def test_every_file_says_what_it_is():
    assert [source for source in SOURCES if (ROOT / source).stat().st_size > 0
            and ast.get_docstring(tree(source)) is None] == []  # fmt: skip


def test_no_file_names_a_registry_or_a_machine():
    hosts = ["pypi" + ".org", "maven" + ".org", "npmjs" + ".org", "/wo" + "rk/", "/ro" + "ot/"]
    texts = [*SOURCES, "README.md", "Makefile", "pyproject.toml", "requirements.lock"]
    wrong = [
        f"{source}: {host}"
        for source in texts
        for host in hosts
        if host in (ROOT / source).read_text(encoding="utf-8")
    ]
    assert not wrong, wrong


def test_no_parameter_field_or_function_has_a_name_that_says_nothing():
    wrong = []
    for source in SOURCES:
        for node in nodes(source):
            name = ""
            if isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = node.name
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.attr
            if name.strip("_") in SAYS_NOTHING:
                wrong.append(f"{source}:{node.lineno} {name}")
    assert not wrong, wrong


def test_no_two_public_classes_share_a_name():
    where = defaultdict(list)
    for source in SOURCES:
        if not source.startswith("tests/"):
            for node in tree(source).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where[node.name].append(source)
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def numeric(value: ast.expr) -> bool:
    """Whether an expression is a number, or a sum or product of numbers."""
    if isinstance(value, ast.UnaryOp):
        return numeric(value.operand)
    if isinstance(value, ast.BinOp):
        return numeric(value.left) and numeric(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def test_a_number_of_the_product_says_why():
    """By a comment in its line, or above it or the group of numbers in which it stands."""
    wrong = []
    for source in SOURCES:
        if source.startswith(("bench/", "tests/")):
            continue
        lines = (ROOT / source).read_text(encoding="utf-8").splitlines()
        for node in tree(source).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and numeric(node.value):
                own = "".join(lines[node.lineno - 1 : node.end_lineno])
                above = node.lineno - 2
                while re.match(r"_?[A-Z][A-Z_, ]*=", lines[above]) and "  # " not in lines[above]:
                    above -= 1
                if "# " not in own and not lines[above].startswith("#"):
                    wrong.append(f"{source}:{node.lineno} {own}")
    assert not wrong, wrong
