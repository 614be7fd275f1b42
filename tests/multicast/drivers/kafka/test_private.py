"""What we use of kafka-python beyond its public interface is there, in each release that we allow.

A failure says what a newer release took away and which file of ours needs it.
"""

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import kafka
import pytest

import multicast.drivers.kafka

OURS = Path(multicast.drivers.kafka.__file__).parent
PUBLIC = {"kafka", "kafka.errors", "kafka.admin"}


def imports_of(file):
    """Give (module, name) for each name that a file imports from kafka-python."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    found = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return [
        (node.module, alias.name)
        for node in found
        if node.module.split(".")[0] == "kafka"
        for alias in node.names
    ]


NAMES = imports_of(OURS / "private.py")
# Of which class, and which ones.
ATTRIBUTES = [
    (module, owner, name)
    for module, owner, names in (
        ("net.selector", "NetworkSelector", "_closed _invoke _io_thread _pending_tasks _selector"),
        ("net.selector", "NetworkSelector", "_poll_once _poll_owner _task_done"),
        ("net.selector", "NetworkSelector", "_wakeup_r _wakeup_w"),
        (
            "net.manager",
            "KafkaConnectionManager",
            "_backoff _build_transport _connect _conns _do_bootstrap _net",
        ),
        ("net.transport", "KafkaTCPTransport", "_read_task _sock _sock_recv"),
        ("net.connection", "KafkaConnection", "_reauth _throttle_time in_flight_requests"),
        ("cluster", "ClusterMetadata", "_last_successful_refresh_ms _refresh_loop_future"),
        ("protocol.schemas.fields.codecs.tagged_fields", "TaggedFields", "decode_empty"),
        ("record.default_records", "DefaultRecordBatch", "_buffer _decompressed _pos"),
        ("admin", "KafkaAdminClient", "_controller_id _describe_configs_request _manager"),
    )
    for name in names.split()
]


def users_of(name):
    return [
        str(file.relative_to(OURS))
        for file in sorted(OURS.rglob("*.py"))
        if file.name != "private.py" and name in file.read_text(encoding="utf-8")
    ]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_each_private_name_that_we_use_is_there(module, name):
    try:
        found = hasattr(importlib.import_module(module), name)
    except ImportError:
        found = False
    if not found and module == "kafka":
        found = importlib.util.find_spec(f"kafka.{name}") is not None
    assert found, (
        f"kafka-python {kafka.__version__} has no {module}.{name} any more, which "
        f"{', '.join(users_of(name))} in {OURS.name} needs"
    )
    assert users_of(name), f"nothing uses {name}: take it out of private.py"


@pytest.mark.parametrize(("module", "owner", "name"), ATTRIBUTES)
def test_each_private_attribute_that_we_use_is_there(module, owner, name):
    of = getattr(importlib.import_module(f"kafka.{module}"), owner)
    text = "".join(inspect.getsource(each) for each in of.__mro__ if each is not object)
    users = users_of(name)
    missing = f"kafka-python {kafka.__version__}: {owner} has no {name}, which {users} need"
    assert hasattr(of, name) or re.search(rf"self\.{name}\b(, self\.\w+)* = ", text), missing
    assert users, f"nothing uses {name}: take it out of the table"


def test_only_one_file_imports_what_is_not_public():
    others = [file for file in OURS.rglob("*.py") if file.name != "private.py"]
    used = {(file.name, module) for file in others for module, _ in imports_of(file)}
    assert {module for _, module in used} <= PUBLIC, used


def test_no_other_attribute_of_the_package_is_private():
    """Each line that ruff lets touch a private member touches one of the table's."""
    known = {name for *_, name in ATTRIBUTES}
    for file in OURS.rglob("*.py"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if "SLF001" in line:
                assert any(f".{name}" in line for name in known), f"{file.name}: {line.strip()}"
