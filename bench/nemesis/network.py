"""A network of our own to break: hosts that are network namespaces, joined by one bridge.

The process that makes it, the **desk**, has to be in a network namespace of its own already
(`alone` gives the command line for that), so nothing that is done here reaches the machine:

    desk    10.77.0.1        the bridge, and one end of every host's cable
    hosts   10.77.0.11 ...   a namespace each, with the other end of its cable as `eth0`

All share one file system and one clock. A namespace lives as long as a process is in it. Its first
is a holder that waits for the desk's end, however it comes, and then kills all others in it: so
the desk's death takes the hosts and whatever runs on them along.

No packet filter is needed, for not every kernel has one. Every host knows the others' hardware
addresses from the start, never asks for them, and a direction is **cut** by a wrong one: what is
sent goes to nobody, silently, as on a line that is broken. The other direction stays as it was.
IPv4 only; the links have no IPv6 address.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from multicast.errors import AmcastError, TimedOut, UsageError

DESK = "desk"
HOSTS_MAX = 200
_PREFIX = "10.77.0"
_BRIDGE = "bridge0"
_LINK = "eth0"
_CABLE = "to-"
_NOBODY = "02:00:00:00:ff:ff"
_NAME = re.compile(r"[a-z][a-z0-9]{0,9}")
_PROGRAMS = ("unshare", "nsenter", "ip", "tc", "ss")
_COMMAND_TIMEOUT_S = 30.0
_PROBE = """
ip link add name here type veth peer name there &&
ip link add name joined type bridge &&
ip link set dev here master joined &&
tc qdisc replace dev here root tbf rate 1mbit burst 3000 latency 1s
"""
# The end of input is the end of the desk. A killed process may be a while in dying, and may have
# had a child in the meantime, so it looks until it finds nobody: neither in this namespace nor on
# the way to it, which only `nsenter`'s command line tells.
_HOLDER = """
cat
end() {
    [ "$1" != $$ ] && kill -9 "$1" && found=yes
}
for round in $(seq 200); do
    found=
    for process in /proc/[0-9]*; do
        [ "$process/ns/net" -ef /proc/$$/ns/net ] && end "${process#/proc/}"
    done
    for process in $(grep -lszFxe "--net=/proc/$$/ns/net" /proc/[0-9]*/cmdline); do
        process=${process#/proc/}
        end "${process%/cmdline}"
    done
    [ "$found" ] || exit 0
    sleep 0.05
done 2>/dev/null
"""


def obstacle() -> str | None:
    """Say in a sentence why no network can be made on this machine; None where it can.

    Tries it in a namespace that is gone again at once.
    """
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"network namespaces need the programs {', '.join(missing)} (util-linux, iproute2)"
    done = _run(["unshare", "--net", "sh", "-c", _PROBE])
    if done.returncode != 0:
        return f"this kernel makes no network namespaces to shape: {_last(done.stderr)}"
    return None


def own_namespace() -> bool:
    """Tell whether nothing but what a `Network` makes is up here: no way leads to the outside."""
    if shutil.which("ip") is None:
        return False
    done = _run(["ip", "-brief", "link", "show", "up"])
    names = [line.split()[0].partition("@")[0] for line in done.stdout.splitlines()]
    return all(name in ("lo", _BRIDGE) or name.startswith(_CABLE) for name in names)


def alone(argv: Sequence[str]) -> list[str]:
    """Return the command line that runs a program as a desk, in a network namespace of its own.

    It keeps its process number: `unshare` becomes the program. Raises `UsageError` where no
    namespaces can be made.
    """
    _refuse(obstacle())
    return [_path("unshare"), "--net", "--", *argv]


class Network:
    """The hosts by name, and what can happen to their cables; a context manager.

    A name is of lower-case letters and digits, 10 at most; `DESK` names the desk wherever a host
    may stand, but in `isolate` and `slow`. On the way in it blocks for about a second; on the way
    out every program on the hosts is killed. One thread at a time may use it.

    Raises `UsageError` where a network can't be made or a name is wrong, `AmcastError` where a
    program of iproute2 fails: the fault may be half made then, which `heal` ends.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        wrong = [name for name in hosts if not _NAME.fullmatch(name) or name == DESK]
        if wrong or len(set(hosts)) != len(hosts) or not 1 <= len(hosts) <= HOSTS_MAX:
            raise UsageError(f"not the names of 1 to {HOSTS_MAX} different hosts: {list(hosts)}")
        self._numbers = {DESK: 1} | {name: 11 + at for at, name in enumerate(hosts)}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def hosts(self) -> list[str]:
        """Their names, without the desk."""
        return [name for name in self._numbers if name != DESK]

    def address(self, host: str) -> str:
        """Return the address of a host or of the desk."""
        return f"{_PREFIX}.{self._number(host)}"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs a program on a host; the process becomes the program.

        With no program, what has to come before one. On the desk it is the program itself.
        """
        self._number(host)
        if host == DESK:
            return list(argv)
        namespace = f"/proc/{self._holders[host].pid}/ns/net"
        return [_path("nsenter"), f"--net={namespace}", "--", *argv]

    # --- faults -----------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Lose every packet from `source` to `target`, and none of the other direction.

        Connections stay; what they lost is sent again by TCP after the healing.
        """
        self._number(target)
        self._direct(source, {target: _NOBODY})

    def isolate(self, host: str) -> None:
        """Unplug the cable of a host: it reaches nobody and nobody reaches it, the desk included.

        Its interface shows that it has no carrier, which few programs look at.
        """
        self._batch(DESK, "ip", [f"link set dev {self._cable(host)} down"])

    def slow(self, host: str, kbit: int) -> None:
        """Let no more than `kbit` kilobits a second pass, in each direction of a host's cable.

        Half a second's worth waits in the queue; what comes on top is lost, as in a real one.
        """
        if kbit < 1:
            raise UsageError(f"a link of {kbit} kbit/s is none; isolate the host")
        # At least two frames, or none would ever fit; 10 ms of a fast line, a tick of the kernel.
        burst = max(3000, kbit * 1000 // 8 // 100)
        self._shape(host, f"tbf rate {kbit}kbit burst {burst} latency 500ms")

    def reset(self, host: str, other: str) -> int:
        """Break all TCP connections between the two, both ends see it; give how many there were.

        `host` finds them aborted and sends RST, which gets lost where that direction is cut. New
        connections may come at once. Raises `AmcastError` where the kernel can't (it needs
        CONFIG_INET_DIAG_DESTROY).
        """
        before = self._connections(host, other)
        killed = self._connections(host, other, "--kill")
        stuck = before & self._connections(host, other) - killed
        if stuck:
            raise AmcastError(f"this kernel did not break {len(stuck)} connections when told to")
        return len(killed)

    def heal(self, host: str | None = None) -> None:
        """Take back all faults, or those of one host's cable and directions. Idempotent."""
        if host is not None:
            self._number(host)
        cables = [each for each in self.hosts if host in (None, each)]
        self._batch(DESK, "ip", [f"link set dev {self._cable(each)} up" for each in cables])
        for each in cables:
            self._shape(each, "noqueue")
        for source in self._numbers:
            targets = [each for each in self._numbers if host in (None, source, each)]
            self._direct(source, {target: self._hardware(target) for target in targets})

    # --- making and unmaking it ---------------------------------------------------------------

    def __enter__(self) -> Self:
        if not own_namespace():
            _refuse(obstacle())
            raise UsageError("a network needs a namespace of its own: run it under unshare --net")
        try:
            for host in self.hosts:
                self._hold(host)
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # A namespace is taken down some time after its last process; its cable must not linger.
        for device in [_BRIDGE, *map(self._cable, self.hosts)]:
            _run(["ip", "link", "delete", "dev", device])
        for holder in self._holders.values():
            assert holder.stdin is not None
            holder.stdin.close()
        for holder in self._holders.values():
            try:
                holder.wait(_COMMAND_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                holder.kill()
                holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()
        self._holders.clear()

    def _hold(self, host: str) -> None:
        """Start the holder of a namespace and wait until it is in it."""
        holder = subprocess.Popen(
            [_path("unshare"), "--net", "--", "sh", "-c", _HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is the desk's alone
        )
        self._holders[host] = holder
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"there?\n")
        holder.stdin.flush()
        if not holder.stdout.readline():
            raise UsageError("a network namespace can't be made here")

    def _join(self) -> None:
        desk = [
            "link set dev lo up",
            f"link add name {_BRIDGE} address {self._hardware(DESK)} type bridge",
            f"address add {self.address(DESK)}/24 dev {_BRIDGE}",
            f"link set dev {_BRIDGE} addrgenmode none up",
        ]
        for host, holder in self._holders.items():
            cable = self._cable(host)
            desk += [
                f"link add name {cable} type veth peer name {_LINK} netns {holder.pid}",
                f"link set dev {cable} addrgenmode none master {_BRIDGE}",
            ]
        self._batch(DESK, "ip", desk)
        for host in self.hosts:
            hardware = f"address {self._hardware(host)} addrgenmode none"
            up = ["link set dev lo up", f"link set dev {_LINK} {hardware} up"]
            self._batch(host, "ip", [*up, f"address add {self.address(host)}/24 dev {_LINK}"])
        self.heal()

    # --- what the kernel is told --------------------------------------------------------------

    def _number(self, host: str) -> int:
        number = self._numbers.get(host)
        if number is None:
            raise UsageError(f"there is no host {host}; there are {', '.join(self._numbers)}")
        return number

    def _hardware(self, host: str) -> str:
        return f"02:00:00:00:00:{self._number(host):02x}"

    def _cable(self, host: str) -> str:
        """Name the desk's end of a host's cable."""
        if host == DESK:
            raise UsageError("the desk has no cable; name a host")
        return f"{_CABLE}{self._number(host)}"

    def _direct(self, source: str, hardware: Mapping[str, str]) -> None:
        """Tell a host to which hardware address it sends what is for each of these others."""
        link = f"nud permanent dev {_BRIDGE if source == DESK else _LINK}"
        known = [
            f"neigh replace {self.address(target)} lladdr {address} {link}"
            for target, address in hardware.items()
            if target != source
        ]
        self._batch(source, "ip", known)

    def _shape(self, host: str, discipline: str) -> None:
        self._batch(DESK, "tc", [f"qdisc replace dev {self._cable(host)} root {discipline}"])
        self._batch(host, "tc", [f"qdisc replace dev {_LINK} root {discipline}"])

    def _connections(self, host: str, other: str, *options: str) -> set[str]:
        """Return both ends of each established connection, or of each that was killed."""
        asked = ["ss", "--no-header", "--numeric", "--tcp", *options]
        asked += ["state", "established", "dst", self.address(other)]
        done = _run(self.command(host, asked))
        if done.returncode != 0:
            raise AmcastError(f"ss failed on {host}: {_last(done.stderr)}")
        return {" ".join(line.split()[2:4]) for line in done.stdout.splitlines()}

    def _batch(self, host: str, program: str, lines: Iterable[str]) -> None:
        done = _run(self.command(host, [program, "-batch", "-"]), "\n".join(lines) + "\n")
        if done.returncode != 0:
            raise AmcastError(f"{program} failed on {host}: {_last(done.stderr)}")


def _run(argv: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            input=text,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimedOut(f"{' '.join(argv)} did not end in {_COMMAND_TIMEOUT_S:.0f} s") from None


def _path(program: str) -> str:
    """Return the whole path: what starts a program without a shell may not search for it."""
    found = shutil.which(program)
    if found is None:
        raise UsageError(f"the program {program} is not installed")
    return found


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"


def _refuse(why: str | None) -> None:
    if why is not None:
        raise UsageError(why)
