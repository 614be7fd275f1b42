"""Containers by podman, and the two base images that the generated files name, made here.

No registry is asked for an image. A minimal Debian with Python and Java stands for Python's slim
image. Kafka's image is that with the published jars, and understands the same `KAFKA_*`.
"""

import os
import subprocess
import sys
from pathlib import Path

from multicast.local.cluster import DEFAULT_VERSION
from multicast.local.jars import broker_jars, find_java

PYTHON = "docker.io/library/python:3.13-slim"
KAFKA = f"docker.io/apache/kafka:{DEFAULT_VERSION}"
COMPOSE = "podman-compose==1.6.0"
_PACKAGES = "python3,python3-venv,ca-certificates,openjdk-17-jre-headless"
# Neither systemd nor more rights than these are there where the tests run.
_SETTINGS = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_RUN_KAFKA = r"""#!/bin/sh
set -eu
env | sed -n 's/^KAFKA_\([A-Z_]*\)=\(.*\)$/\1 \2/p' | while read -r name value; do
  echo "$(echo "$name" | tr 'A-Z_' 'a-z.')=$value"
done > /tmp/server.properties
java -cp '/opt/kafka/libs/*' kafka.tools.StorageTool format --ignore-formatted \
  --cluster-id 4L6g3nShT-eMCtK--X86sw --config /tmp/server.properties
exec java -Xmx512m -cp '/opt/kafka/libs/*' kafka.Kafka /tmp/server.properties
"""
_VERSIONS = """#!/bin/sh
exec java -Xmx64m -XX:TieredStopAtLevel=1 -cp '/opt/kafka/libs/*' \\
  org.apache.kafka.tools.BrokerApiVersionsCommand "$@"
"""


class Podman:
    """Images and containers in a folder of their own; a context manager that removes them."""

    def __init__(self, folder):
        self._folder = folder
        self._environment = {**os.environ, "CONTAINERS_CONF": f"{folder}/containers.conf"}
        self._environment["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
        self._storage = ["--root", f"{folder}/root", "--runroot", f"{folder}/run"]

    def __enter__(self):
        (self._folder / "containers.conf").write_text(_SETTINGS)
        # podman-compose calls podman by its name.
        script = self._folder / "bin/podman"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec /usr/bin/podman {" ".join(self._storage)} "$@"\n')
        script.chmod(0o755)
        self._run(sys.executable, "-m", "venv", f"{self._folder}/compose")
        self._run(f"{self._folder}/compose/bin/pip", "install", "--quiet", COMPOSE)
        return self

    def __exit__(self, *_):
        self("rm", "--all", "--force", "--volumes", check=False)
        self("system", "reset", "--force", check=False)

    def __call__(self, *words, given="", check=True):
        """Run podman, with a text as its input; give what it prints."""
        return self._run("podman", *words, given=given, check=check)

    def compose(self, folder, *words):
        """Run podman-compose on the files of a folder."""
        compose = f"{self._folder}/compose/bin/podman-compose"
        return self._run(compose, "--in-pod", "false", "-p", "amcast", *words, cwd=folder)

    def make_images(self):
        """Make the two base images."""
        base = self._folder / "base"
        self._run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", base,
                  _mirror())  # fmt: skip
        (base / "usr/bin/python").symlink_to("python3")
        for file in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf"):
            if Path(file).exists():
                (base / file[1:]).write_bytes(Path(file).read_bytes())
        self._run("tar", "-C", base, "-cf", f"{base}.tar", ".")
        self("import", f"{base}.tar", PYTHON)
        kafka = self._folder / "kafka"
        (kafka / "libs").mkdir(parents=True)
        for jar in broker_jars(DEFAULT_VERSION, java=find_java(), progress=lambda _: None):
            (kafka / "libs" / jar.name).write_bytes(jar.read_bytes())
        programs = {"run-kafka": _RUN_KAFKA, "kafka-broker-api-versions.sh": _VERSIONS}
        for name, text in programs.items():
            (kafka / name).write_text(text)
            (kafka / name).chmod(0o755)
        (kafka / "Containerfile").write_text(
            f"FROM {PYTHON}\nCOPY libs /opt/kafka/libs\nCOPY {' '.join(programs)} /opt/kafka/bin/\n"
            f'RUN mkdir -p /var/lib/kafka/data\nCMD ["/opt/kafka/bin/run-kafka"]\n'
        )
        self("build", "--quiet", "--tag", KAFKA, str(kafka))

    def _run(self, *words, given="", check=True, cwd=None):
        done = subprocess.run(
            list(map(str, words)),
            env=self._environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            input=given,
            check=False,
            timeout=900,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr}"
        return done.stdout + done.stderr


def _mirror():
    """Give where this machine has its Debian packages from."""
    policy = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Codename: bookworm"],
        capture_output=True,
        text=True,
        check=True,
    )
    return policy.stdout.split()[0]
