"""The files that `amcast generate` writes, from the templates in this package.

A kind of deployment is a folder below `templates/`. In its files `@{name}` is an option of the
command, and `@@` is an at sign, so that `$` and `{{ }}` keep the meaning that the shell,
Prometheus and Helm give them. The dashboard is made by code (`dashboard.py`), as its panels repeat
one another.

Every value is checked before it is put into a file: none can end a line or a quoted text.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from collectors.deploy.dashboard import dashboard
from multicast.errors import UsageError

_PORT_MAX = 65535  # of TCP
_REPLICAS_MAX = 1000  # far beyond the collectors of any plan; a typing error is refused
_BROKER = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?"
# What each option may hold: names as Kafka, images as the OCI's reference grammar, paths without
# spaces, all on one line.
_ALLOWED = {
    "topic": r"[A-Za-z0-9._-]{1,249}",
    "bootstrap": rf"{_BROKER}(,{_BROKER})*",
    "repository": r"[A-Za-z0-9][A-Za-z0-9._/:-]*",
    "tag": r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}",
    "kafka_image": r"[A-Za-z0-9][A-Za-z0-9._/:@-]*",
    "command": r"/[A-Za-z0-9._/-]+",
    "job": r"[A-Za-z0-9._-]+",
}
KINDS = ("compose", "grafana", "helm", "prometheus-rules", "systemd")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSettings:
    """What the files name: brokers "host:port,…", topic, image, and how many processes run."""

    bootstrap: str
    topic: str
    repository: str = "amcast"
    tag: str = "latest"
    kafka_image: str = "docker.io/apache/kafka:4.3.1"
    command: str = "/opt/amcast/bin/amcast"
    job: str = "amcast"
    replicas: int = 2
    web_port: int = 6066

    def __post_init__(self) -> None:
        """Raise `UsageError` if a value does not fit into the files."""
        for name, pattern in _ALLOWED.items():
            value = getattr(self, name)
            if re.fullmatch(pattern, value, re.ASCII) is None:
                option = {"repository": "image", "tag": "image"}.get(name, name)
                raise UsageError(
                    f"--{option.replace('_', '-')} {value!r} cannot stand in a generated file; "
                    f"write it as {pattern}"
                )
        for name, most in (("replicas", _REPLICAS_MAX), ("web_port", _PORT_MAX)):
            if not 1 <= getattr(self, name) <= most:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} is {getattr(self, name)}; give 1 to {most}")


class _Text(string.Template):
    """A text in which `@{name}` stands for a value."""

    delimiter = "@"


def generate(kind: str, deployment: DeploymentSettings) -> dict[str, str]:
    """Return the files of a kind of `KINDS`: their paths below one folder, and their texts."""
    if kind == "grafana":
        return {"amcast-dashboard.json": dashboard(job=deployment.job)}
    values = {name: str(value) for name, value in asdict(deployment).items()}
    if kind == "helm":
        rules = generate("prometheus-rules", deployment)["amcast-rules.yaml"]
        return {**_of_folder(kind, values), "files/amcast-rules.yaml": rules}
    return _of_folder(kind, values)


def _of_folder(kind: str, values: dict[str, str]) -> dict[str, str]:
    templates = files("collectors.deploy").joinpath("templates")
    confinement = _Text(templates.joinpath("confinement.service").read_text("utf-8"))
    values = {**values, "confinement": confinement.substitute(values)}
    return {
        path: _Text(file.read_text("utf-8")).substitute(values)
        for path, file in _walk(templates.joinpath(kind), "")
    }


def _walk(folder: Traversable, under: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _walk(entry, f"{under}{entry.name}/")
        else:
            yield f"{under}{entry.name}", entry
