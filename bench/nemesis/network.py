"""A virtual network to break: hosts are network namespaces, connected by a bridge.

The process that creates it, the **desk**, must already run in its own network namespace
(`in_own_namespace` returns the command line for that), so no fault reaches the machine's network:

    desk    10.77.0.1        the bridge, and one end of every host's cable (a veth pair)
    hosts   10.77.0.11 ...   a namespace each, with the other end of its cable as `eth0`

All hosts share one file system and one clock. A namespace exists as long as a process runs in it.
Its first process, the holder, waits for the end of the desk, however it ends, and then kills all
other processes in the namespace: no program survives the desk.

No packet filter is used, because not every kernel has one. Every host has static entries for the
others' hardware addresses; a wrong entry **cuts** one direction: packets are silently lost, and the
other direction still works. IPv4 only; the links have no IPv6 address.
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
HOSTS_MAX = 200  # addresses 10.77.0.11 to .210 of one /24 network
_PREFIX = "10.77.0"
_BRIDGE = "bridge0"
_LINK = "eth0"
_CABLE = "to-"
_NOBODY = "02:00:00:00:ff:ff"
_NAME = re.compile(r"[a-z][a-z0-9]{0,9}")
_PROGRAMS = ("unshare", "nsenter", "ip", "tc", "ss")
_COMMAND_TIMEOUT_S = 30.0  # commands take milliseconds; this one bounds a machine that hangs
_PROBE = """
ip link add name here type veth peer name there &&
ip link add name joined type bridge &&
ip link set dev here master joined &&
tc qdisc replace dev here root tbf rate 1mbit burst 3000 latency 1s
"""
# The input ends with the desk. A killed process may take a while to die, and may have forked
# meanwhile, so the holder repeats until it finds no process in this namespace, and none that is
# about to enter it, which only the command line of `nsenter` shows.
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
    """Return a sentence that says why this machine cannot create a network; None if it can.

    Tries it in a temporary namespace.
    """
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"network namespaces need the programs {', '.join(missing)} (util-linux, iproute2)"
    done = _run(["unshare", "--net", "sh", "-c", _PROBE])
    if done.returncode != 0:
        return f"this kernel cannot create and shape network namespaces: {_last(done.stderr)}"
    return None


def own_namespace() -> bool:
    """Whether this process is in its own namespace: only links of a `Network` are up."""
    if shutil.which("ip") is None:
        return False
    done = _run(["ip", "-brief", "link", "show", "up"])
    names = [line.split()[0].partition("@")[0] for line in done.stdout.splitlines()]
    return all(name in ("lo", _BRIDGE) or name.startswith(_CABLE) for name in names)


def in_own_namespace(argv: Sequence[str]) -> list[str]:
    """Return the command line that runs a program as a desk, in a new network namespace.

    The process ID stays the same: `unshare` becomes the program. Raises `UsageError` if the machine
    cannot create namespaces.
    """
    _refuse(obstacle())
    return [_path("unshare"), "--net", "--", *argv]


class Network:
    """The hosts by name, and the faults of their cables; a context manager.

    A name has at most 10 lower-case letters and digits; methods also accept `DESK` as a host,
    except `isolate` and `slow`. Entering takes about a second; leaving kills every program on the
    hosts. Use it from one thread at a time.

    Raises `UsageError` if the machine cannot create a network or a name is wrong, `AmcastError` if
    a program of iproute2 fails: then the fault may be incomplete, and `heal` removes it.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        wrong = [name for name in hosts if not _NAME.fullmatch(name) or name == DESK]
        if wrong or len(set(hosts)) != len(hosts) or not 1 <= len(hosts) <= HOSTS_MAX:
            raise UsageError(
                f"a network needs 1 to {HOSTS_MAX} different host names of up to 10 lower-case "
                f"letters and digits, not {list(hosts)}"
            )
        self._numbers = {DESK: 1} | {name: 11 + index for index, name in enumerate(hosts)}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def hosts(self) -> list[str]:
        """The hosts' names, without the desk."""
        return [name for name in self._numbers if name != DESK]

    def address(self, host: str) -> str:
        """Return the address of a host or of the desk."""
        return f"{_PREFIX}.{self._number(host)}"

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs a program on a host; the process becomes the program.

        Without a program, return the prefix of such a command line. On the desk it is empty.
        """
        self._number(host)
        if host == DESK:
            return list(argv)
        namespace = f"/proc/{self._holders[host].pid}/ns/net"
        return [_path("nsenter"), f"--net={namespace}", "--", *argv]

    # --- faults -----------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Lose every packet from `source` to `target`, but none in the other direction.

        Connections stay open; TCP sends the lost bytes again after the healing.
        """
        self._number(target)
        self._direct(source, {target: _NOBODY})

    def isolate(self, host: str) -> None:
        """Unplug the cable of a host: no packet reaches or leaves it, not even from the desk.

        Its interface loses the carrier, which few programs notice.
        """
        self._batch(DESK, "ip", [f"link set dev {self._cable(host)} down"])

    def slow(self, host: str, kbit: int) -> None:
        """Limit each direction of a host's cable to `kbit` kilobits a second.

        The queue holds half a second's traffic; packets beyond are dropped, as by a real router.
        """
        if kbit < 1:
            raise UsageError(
                f"a link needs at least 1 kbit/s, not {kbit}; isolate the host instead"
            )
        # At least two frames, or none would ever pass; on a fast link 10 ms, a tick of the kernel.
        burst = max(3000, kbit * 1000 // 8 // 100)
        self._shape(host, f"tbf rate {kbit}kbit burst {burst} latency 500ms")

    def reset(self, host: str, other: str) -> int:
        """Abort all TCP connections between two hosts at both ends; return their number.

        `host` aborts them and sends RST, which is lost if that direction is cut. New connections
        are possible at once. Raises `AmcastError` if the kernel lacks CONFIG_INET_DIAG_DESTROY.
        """
        before = self._connections(host, other)
        killed = self._connections(host, other, "--kill")
        stuck = before & self._connections(host, other) - killed
        if stuck:
            raise AmcastError(
                f"this kernel did not abort {len(stuck)} connections; it needs "
                "CONFIG_INET_DIAG_DESTROY"
            )
        return len(killed)

    def heal(self, host: str | None = None) -> None:
        """Heal all faults, or those of one host's cable and directions. Idempotent."""
        if host is not None:
            self._number(host)
        cables = [each for each in self.hosts if host in (None, each)]
        self._batch(DESK, "ip", [f"link set dev {self._cable(each)} up" for each in cables])
        for each in cables:
            self._shape(each, "noqueue")
        for source in self._numbers:
            targets = [each for each in self._numbers if host in (None, source, each)]
            self._direct(source, {target: self._hardware(target) for target in targets})

    # --- creation and removal -----------------------------------------------------------------

    def __enter__(self) -> Self:
        if not own_namespace():
            _refuse(obstacle())
            raise UsageError("a network needs its own namespace: run this under unshare --net")
        try:
            for host in self.hosts:
                self._hold(host)
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The kernel removes a namespace some time after its last process; remove its cable now.
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
        """Start the holder of a namespace, and wait until it runs there."""
        holder = subprocess.Popen(
            [_path("unshare"), "--net", "--", "sh", "-c", _HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that Ctrl-C in a terminal reaches only the desk
        )
        self._holders[host] = holder
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"there?\n")
        holder.stdin.flush()
        if not holder.stdout.readline():
            raise UsageError("cannot create a network namespace on this machine")

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

    # --- commands to the kernel ---------------------------------------------------------------

    def _number(self, host: str) -> int:
        number = self._numbers.get(host)
        if number is None:
            raise UsageError(f"there is no host {host}; known: {', '.join(self._numbers)}")
        return number

    def _hardware(self, host: str) -> str:
        return f"02:00:00:00:00:{self._number(host):02x}"

    def _cable(self, host: str) -> str:
        """Name the desk's end of a host's cable."""
        if host == DESK:
            raise UsageError("the desk has no cable; name a host")
        return f"{_CABLE}{self._number(host)}"

    def _direct(self, source: str, hardware: Mapping[str, str]) -> None:
        """Set the hardware addresses to which a host sends packets for each of these others."""
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
        """Return both ends of each established connection, or with "--kill" of each killed one."""
        argv = ["ss", "--no-header", "--numeric", "--tcp", *options]
        argv += ["state", "established", "dst", self.address(other)]
        done = _run(self.command(host, argv))
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
    """Return a program's absolute path, because `execv` does not search for it."""
    path = shutil.which(program)
    if path is None:
        raise UsageError(f"the program {program} is not installed")
    return path


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"


def _refuse(why: str | None) -> None:
    if why is not None:
        raise UsageError(why)
