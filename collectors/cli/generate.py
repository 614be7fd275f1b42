"""`amcast generate`: writes files for systemd, containers, Kubernetes, Prometheus and Grafana."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from collectors.deploy.acls import commands
from collectors.deploy.files import KINDS, DeploymentSettings, generate
from multicast.cli.options import Bootstrap, Topic
from multicast.errors import UsageError
from multicast.settings import settings
from topology.files import is_written_in_place, write_text
from topology.output import ForceOption
from topology.tree import InvalidPlan, Plan

app = typer.Typer(
    no_args_is_help=True, help="Write files for deployment and monitoring; ask no cluster."
)
_DEFAULTS = DeploymentSettings(bootstrap="127.0.0.1:9092", topic="A")
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", readable=False, help="A folder, or the file if there is one; else stdout."
    ),
]
Image = Annotated[str, typer.Option("--image", help="The image of amcast, as name:tag.")]
Replicas = Annotated[int, typer.Option("--replicas", help="Processes of collectors.")]
WebPort = Annotated[int, typer.Option("--web-port", help="Port of /healthz and /metrics.")]
Job = Annotated[str, typer.Option("--job", help="The job in Prometheus' scrape configuration.")]
_BROKER = "kafka:9092"  # the service in the compose file
_IMAGE = f"{_DEFAULTS.repository}:{_DEFAULTS.tag}"


@app.command()
def systemd(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    command: Annotated[
        str, typer.Option("--command", help="The absolute path of the command amcast.")
    ] = _DEFAULTS.command,
    web_port: WebPort = _DEFAULTS.web_port,
    out: Out = None,
    force: ForceOption = False,
) -> None:
    """Write systemd units: of collectors, the same on every machine, and of a copier."""
    deployment = _reaching(bootstrap, topic, command=command, web_port=web_port)
    _write("systemd", deployment, out, force=force)


@app.command()
def compose(
    *,
    topic: Topic = None,
    image: Image = _IMAGE,
    kafka_image: Annotated[
        str, typer.Option("--kafka-image", help="The image of Kafka.")
    ] = _DEFAULTS.kafka_image,
    replicas: Replicas = _DEFAULTS.replicas,
    out: Out = None,
    force: ForceOption = False,
) -> None:
    """Write a Containerfile and a compose file with one Kafka broker, the plan, and collectors."""
    deployment = _reaching(
        _BROKER, topic, **_parts(image), kafka_image=kafka_image, replicas=replicas
    )
    _write("compose", deployment, out, force=force)


@app.command()
def helm(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    image: Image = _IMAGE,
    replicas: Replicas = _DEFAULTS.replicas,
    web_port: WebPort = _DEFAULTS.web_port,
    out: Out = None,
    force: ForceOption = False,
) -> None:
    """Write a Helm chart that runs collectors; the options become its default values."""
    deployment = _reaching(bootstrap, topic, **_parts(image), replicas=replicas, web_port=web_port)
    _write("helm", deployment, out, force=force)


@app.command()
def acls(
    plan: Annotated[Path, typer.Argument(help="The plan whose topics are meant.")],
    *,
    bootstrap: Bootstrap = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="A role; repeatable. Default: all.")
    ] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", help="The user. Default: User: and the role.")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", help="A consumer's group; repeatable. Default: all of the plan."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", help="The topic of copies (materialize) or dead letters."),
    ] = None,
) -> None:
    """Print the least rights of each role, as commands of Kafka's kafka-acls.sh."""
    try:
        read = Plan.parse(plan.read_bytes())
    except (ValueError, InvalidPlan) as error:
        raise UsageError(f"{plan}: {error}") from error
    groups = group or [consumer.name for consumer in read.consumers]
    brokers = settings(bootstrap=bootstrap, topic=read.topic).bootstrap
    chosen = role or ()
    for line in commands(
        read, chosen, bootstrap=brokers, principal=principal, groups=groups, target=target
    ):
        typer.echo(line)


@app.command("prometheus-rules")
def prometheus_rules(
    *, job: Job = _DEFAULTS.job, out: Out = None, force: ForceOption = False
) -> None:
    """Write Prometheus' alerts, each with what to do."""
    _write("prometheus-rules", replace(_DEFAULTS, job=job), out, force=force)


@app.command()
def grafana(*, job: Job = _DEFAULTS.job, out: Out = None, force: ForceOption = False) -> None:
    """Write a Grafana dashboard."""
    _write("grafana", replace(_DEFAULTS, job=job), out, force=force)


def _reaching(bootstrap: str | None, topic: str | None, **chosen: Any) -> DeploymentSettings:
    """Give what is chosen, for the cluster and topic that are given or set."""
    system = settings(bootstrap=bootstrap, topic=topic)
    return DeploymentSettings(bootstrap=system.bootstrap, topic=system.topic, **chosen)


def _parts(image: str) -> dict[str, str]:
    """Split "name:tag"; without a tag it is "latest"."""
    name, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        name, tag = image, "latest"
    return {"repository": name, "tag": tag}


def _write(kind: str, deployment: DeploymentSettings, out: Path | None, *, force: bool) -> None:
    """Write the files of a kind to stdout, to a folder, or, if there is one only, to a file."""
    assert kind in KINDS, "a command's name is a kind"
    texts = generate(kind, deployment)
    if out is None:
        for name, text in texts.items():
            if len(texts) > 1:
                typer.echo(f"# ==> {name} <==")
            typer.echo(text, nl=False)
        return
    is_named = len(texts) == 1 or out.suffix in {Path(name).suffix for name in texts}
    is_file = not out.is_dir() and (out.exists() or bool(out.suffix and is_named))
    if is_file and len(texts) > 1:
        raise UsageError(f"{out} is not a folder; give a folder for these {len(texts)} files")
    targets = {(out if is_file else out / name): text for name, text in texts.items()}
    existing = sorted(
        str(path) for path in targets if path.exists() and not is_written_in_place(path)
    )
    if existing and not force:
        raise UsageError(f"{existing[0]} exists; --force overwrites it")
    for path, text in targets.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text, force=True)
