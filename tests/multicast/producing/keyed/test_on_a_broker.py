"""Keys on a real broker: running collectors, and the commands."""

import json

import pytest

from multicast.producing.keyed.partitioners import by_crc32, by_murmur2
from tests.helpers.plans import poster
from tests.helpers.system import System, amcast

# Among five partitions, by murmur2; one key for each partition.
KEYS = {f"P{by_murmur2(key.encode(), 5) + 1}": key for key in map(str, range(50))}
# crc32 puts it into P3, and murmur2 does not.
CRC32_KEY = next(
    key
    for key in map(str, range(50))
    if by_crc32(key.encode(), 5) == 2 != by_murmur2(key.encode(), 5)
)


@pytest.fixture
def system(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as made:
        made.order()
        yield made


def send(system, *options, lines):
    done = amcast("send", *system.common(), *options, stdin="".join(f"{x}\n" for x in lines))
    assert done.returncode == 0, done.stderr


def test_the_commands_send_by_keys_receive_them_and_show_the_plan_in_force(system):
    one, two, three = (KEYS[f"P{number}"] for number in (1, 2, 3))
    send(system, "--key", one, lines=["key"])
    send(system, "--keys", f"{three},{one}", lines=["set"])
    send(system, "--keys", f"{one},{three}", "--key", "own", lines=["own key"])
    send(system, lines=[json.dumps({"keys": [two], "payload": "line"})])
    send(system, "--partitioner", "crc32", "--key", CRC32_KEY, lines=["crc32"])

    received = system.receive("-n", "C1", "--until-end", "-g", "keys")

    expected = {
        "key": (["P1"], one),
        "set": (["P1", "P3"], three),
        "own key": (["P1", "P3"], "own"),
        "line": (["P2"], two),
        "crc32": (["P3"], CRC32_KEY),
    }
    places = {message["payload"]: (message["to"], message["key"]) for message in received}
    assert {name: at for name, at in places.items() if name in expected} == expected
    cluster = ["-b", system.bootstrap, "-t", system.topic]
    shown = amcast("topology", "show", "--from-cluster", *cluster, "-o", "json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    plan = document.get("plan", document)
    in_force = json.loads(system.plan.canonical())
    assert {name: plan[name] for name in in_force} == in_force
    missing = amcast("topology", "show", "--from-cluster", "-b", system.bootstrap, "-t", "nothing")
    assert (missing.returncode, "amcast topology apply" in missing.stderr) == (2, True)
