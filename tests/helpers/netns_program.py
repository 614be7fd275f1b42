"""Situations that need a network namespace of their own: this program runs as the desk of one.

`python -m tests.helpers.netns_program SITUATION FOLDER`, under `unshare --net`. It ends with exit
code 0 if all that the situation asserts was so; test_network.py starts it and says what each is
about.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench.nemesis.network import DESK, Network
from tests.helpers.system import until

PEER = str(Path(__file__).with_name("netns_peer.py"))
_ports = itertools.count(7000)


def say(**what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Peer:
    """A program on a host that has one end of a TCP connection; `lines` is what it told."""

    def __init__(self, network, host, *arguments):
        self.lines = []
        self._process = subprocess.Popen(
            network.command(host, [sys.executable, PEER, *map(str, arguments)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self._process.pid
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        self.lines.extend(line.rstrip("\n") for line in self._process.stdout)

    def send(self, line):
        self._process.stdin.write(f"{line}\n")

    def wait_for(self, line):
        until(lambda: line in self.lines, f"{line[:100]!r}, having told {self.lines},")


def joined(network, host, other):
    """Connect two hosts; give the peers on both."""
    port = next(_ports)
    to = Peer(network, other, "listen", network.address(other), port)
    to.wait_for("listening")
    near = Peer(network, host, "connect", network.address(other), port)
    to.wait_for("connected")
    near.wait_for("connected")
    return near, to


def talk(near, other, word):
    """Both hear each other."""
    near.send(word)
    other.wait_for(f"heard {word}")
    other.send(f"{word} to you")
    near.wait_for(f"heard {word} to you")


def sent_again(network, host):
    """Count the segments that the kernel of a host had to send again."""
    done = subprocess.run(
        network.command(host, ["cat", "/proc/net/snmp"]), capture_output=True, text=True, check=True
    )
    names, values = re.findall(r"^Tcp: (.*)$", done.stdout, re.MULTILINE)
    return int(dict(zip(names.split(), values.split(), strict=True))["RetransSegs"])


def tried_in_vain(network, host, since):
    """Wait until a host has sent something several times more."""
    until(lambda: sent_again(network, host) >= since + 3, f"a third attempt of {host}")


# --- the situations ------------------------------------------------------------------------------


def one_direction_is_cut(_):
    with Network(["b1", "b2", "b3"]) as network:
        one, other = joined(network, "b1", "b2")
        third, fourth = joined(network, "b1", "b3")
        talk(one, other, "before")
        network.cut("b1", "b2")
        since = sent_again(network, "b1")
        one.send("lost at first")
        other.send("this way is open")
        one.wait_for("heard this way is open")
        tried_in_vain(network, "b1", since)
        assert "heard lost at first" not in other.lines
        talk(third, fourth, "elsewhere nothing changed")
        network.heal()
        other.wait_for("heard lost at first")
        talk(one, other, "after")


def a_host_is_isolated(_):
    with Network(["b1", "b2", "b3"]) as network:
        one, other = joined(network, "b1", "b2")
        desk, alone = joined(network, DESK, "b1")
        third, fourth = joined(network, "b2", "b3")
        since = {host: sent_again(network, host) for host in ("b2", DESK)}
        network.isolate("b1")
        for peer in (one, other, desk, alone):
            peer.send("waits")
        for host, count in since.items():
            tried_in_vain(network, host, count)
        talk(third, fourth, "the others go on")
        assert not any("heard waits" in peer.lines for peer in (one, other, desk, alone))
        network.heal("b1")
        for peer in (one, other, desk, alone):
            peer.wait_for("heard waits")


def a_link_is_slow(_):
    # 400 kB at 800 kbit/s are 4 s, and without a limit a few milliseconds.
    size, kbit = 400_000, 800

    def took(sender, receiver, length):
        start = time.monotonic()
        sender.send("x" * length)
        receiver.wait_for(f"heard {length}")
        return time.monotonic() - start

    with Network(["b1", "b2", "b3"]) as network:
        one, other = joined(network, "b1", "b2")
        third, fourth = joined(network, "b2", "b3")
        seconds = {"before": min(took(one, other, size + at) for at in range(3))}
        network.slow("b1", kbit)
        seconds["out"] = took(one, other, size + 10)
        seconds["in"] = took(other, one, size + 11)
        seconds["others"] = min(took(third, fourth, size + 20 + at) for at in range(3))
        network.slow("b1", 4 * kbit)
        seconds["less slow"] = took(one, other, size + 12)
        network.heal()
        seconds["after"] = min(took(one, other, size + 30 + at) for at in range(3))
        say(**seconds)
        least = size * 8 / 1000 / kbit
        assert min(seconds["out"], seconds["in"]) > 0.9 * least
        assert seconds["less slow"] > 0.9 * least / 4
        for name in ("before", "others", "after"):
            assert seconds[name] < seconds["out"] / 4, seconds
        assert seconds["less slow"] < seconds["out"], seconds


def connections_are_reset(_):
    with Network(["b1", "b2", "b3"]) as network:
        first, second = joined(network, "b1", "b2"), joined(network, "b2", "b1")
        kept = joined(network, "b1", "b3")
        assert network.reset("b1", "b2") == 2
        for peer in (*first, *second):
            # A peer whose own kernel ends the connection reads another error than the other one.
            until(lambda peer=peer: {"ECONNABORTED", "ECONNRESET"} & set(peer.lines), "its end")
        assert network.reset("b1", "b2") == 0
        talk(*kept, "not meant")
        talk(*joined(network, "b1", "b2"), "anew")


def the_desk_is_killed(folder):
    """Leave a program, two that are stopped and one without parents on each host."""
    with Network(["b1", "b2"]) as network:
        pids = []
        for host in network.hosts:
            # The first is stopped so early that it may still be on its way to the host.
            early, late, running = (
                Peer(network, host, "listen", "0.0.0.0", at) for at in (1, 2, 3)
            )
            os.kill(early.pid, signal.SIGSTOP)
            late.wait_for("listening")
            os.kill(late.pid, signal.SIGSTOP)
            running.wait_for("listening")
            pids += [early.pid, late.pid, running.pid]
            orphan = folder / f"{host}.pid"
            script = f"trap '' HUP TERM; setsid sleep 600 & echo $! > {orphan}"
            subprocess.run(network.command(host, ["sh", "-c", script]), check=True)
            until(lambda orphan=orphan: orphan.read_text().strip(), "its number")
            pids.append(int(orphan.read_text()))
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
        say(pids=sorted({*pids, *map(int, children.split())}))
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
