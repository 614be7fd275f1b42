"""What docs/operating.md says of connections and descriptors, compared with a running system."""

import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.system import until
from tests.ordering_osn.helpers.small import chains_plan, quick
from tests.ordering_osn.node.test_cluster import network

pytestmark = [pytest.mark.campaign, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
PAGE = Path(__file__).parents[3] / "docs" / "operating.md"
ROW = re.compile(r"^\| `amcast ([a-z -]+)`[^|]*\| (\d+) \| (\d+) \|$", re.MULTILINE)
CHAINS = ("chain-a", "chain-b")


def taken(pid, port):
    """Count a process's connections to this port, and its descriptors."""
    open_now = [each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()]
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    ours = {f"socket:[{each[9]}]" for each in fields if int(each[2].split(":")[1], 16) == port}
    return sum(str(each) in ours for each in open_now), len(open_now)


def test_each_process_takes_what_the_page_says_and_not_far_less(kafka_cluster, tmp_path):
    stated = {name: (int(most), int(fds)) for name, most, fds in ROW.findall(PAGE.read_text())}
    port = int(kafka_cluster.bootstrap.split(":")[1])
    plan = chains_plan(*CHAINS, "p", spanning=[CHAINS], readers=[(*CHAINS, "p")])
    blocks = [quick(name, timeout="50ms") for name in CHAINS]
    settings = {"nodes": 1, "waits": False, "collectors": False}
    with network(kafka_cluster, tmp_path, plan, *blocks, **settings) as net, ExitStack() as stack:
        place = ["-b", kafka_cluster.bootstrap, "-t", net.system.topic]
        pids = {"collectors run": net.system.order().pid, "osn run": net.nodes.pids[0]}
        name = ".".join((*CHAINS, "p"))
        for verb, *rest in (
            ["send", "--to", "p"],
            ["receive", "--name", name, "--group", "g"],
            ["materialize", name, "--to", f"{net.system.topic}.copies"],
            ["ui", "--web-port", "0"],
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "multicast", verb, *place, *rest],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if verb == "ui" else None,
                bufsize=0,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            pids[verb] = process.pid
            if verb == "send":
                process.stdin.write(b"one\n")
            if verb == "ui":
                page = process.stderr.readline().decode().split()[-1]
                for path in ("events", f"timeline?interest={name.replace('.', ',')}"):
                    looks = urllib.request.urlopen(page + path, timeout=60)
                    stack.enter_context(looks)
        assert pids.keys() == stated.keys()
        until(lambda: net.nodes.healthy(0), "the node")
        most = dict.fromkeys(pids, (0, 0))

        def settled():
            now = {name: taken(pid, port) for name, pid in pids.items()}
            grown = {name: tuple(map(max, most[name], now[name])) for name in pids}
            is_same = grown == most and all(count for count, _ in now.values())
            most.update(grown)
            return is_same

        until(settled, "an end of opening", pause=6.0)
        for name, (count, descriptors) in stated.items():
            assert count / 2 <= most[name][0] <= count, (name, most)
            assert descriptors / 2 <= most[name][1] <= descriptors, (name, most)
