"""The generated files, judged by the programs and schemas that will read them.

`compose-spec.json` is the compose specification's own schema: compose-spec/compose-spec, commit
170098ba07d9, schema/compose-spec.json (Apache-2.0).
"""

import configparser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from collectors.cli.generate import app
from collectors.deploy.files import KINDS, DeploymentSettings, generate
from multicast.errors import UsageError
from tests.helpers.system import amcast

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BROKERS = "k1.example:9092,k2.example:9092"


def run(*words, cwd=None):
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def written(folder, kind, **options):
    deployment = DeploymentSettings(**{"bootstrap": BROKERS, "topic": "A", **options})
    for name, text in generate(kind, deployment).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def invoke(*words):
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_each_kind_is_a_command_that_writes_to_stdout_or_into_a_folder(tmp_path):
    for kind in KINDS:
        options = ["-b", BROKERS] if kind in ("helm", "systemd") else []
        folder = tmp_path / kind
        invoke(kind, *options, "--out", str(folder))
        printed = invoke(kind, *options).stdout
        files = list(filter(Path.is_file, folder.rglob("*")))
        assert files
        assert all(file.read_text() in printed for file in files)


def test_a_file_that_exists_is_overwritten_only_by_force(tmp_path):
    target = tmp_path / "rules.yaml"
    target.write_text("mine")
    refused = amcast("generate", "prometheus-rules", "--out", str(target))
    assert (refused.returncode, target.read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    invoke("prometheus-rules", "--out", str(target), "--force")
    assert target.read_text().startswith("#")


def test_several_files_go_to_no_file(tmp_path):
    refused = amcast("generate", "compose", "-t", "A", "--out", str(tmp_path / "a.yaml"))
    assert (refused.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "is not a folder" in refused.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "A\nExecStartPre=/bin/sh"},
        {"bootstrap": 'k1:9092" --node "x'},
        {"command": "amcast"},
        {"repository": "a b"},
        {"replicas": 0},
        {"web_port": 65536},
    ],
)
def test_a_value_that_would_break_a_file_is_refused(wrong):
    with pytest.raises(UsageError):
        DeploymentSettings(**{"bootstrap": BROKERS, "topic": "A", **wrong})


@pytest.mark.parametrize(
    ("unit", "command", "ends"),
    [
        (
            "amcast-collectors",
            f"collectors run --bootstrap {BROKERS} --topic A --web-port 6066",
            "2",
        ),
        ("amcast-materialize@", f"materialize %i --to A.%i --bootstrap {BROKERS} --topic A", "2 5"),
    ],
)
def test_systemd_accepts_a_unit_and_the_unit_stops_what_it_starts(tmp_path, unit, command, ends):
    # The verifier refuses a command that is not there, so the unit names one that is.
    file = written(tmp_path, "systemd", command="/bin/true") / f"{unit}.service"
    if shutil.which("systemd-analyze"):
        assert run("systemd-analyze", "verify", file) == ""
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str
    parsed.read(file)
    service = parsed["Service"]
    assert service["ExecStart"] == f"/bin/true {command}"
    assert (service["Restart"], service["KillSignal"]) == ("on-failure", "SIGTERM")
    assert service["RestartPreventExitStatus"] == ends
    assert service["SystemCallFilter"] == "@system-service"
    # A name: so files with passwords can be readable for this user alone.
    assert service["User"] == "amcast"


def test_the_unit_says_how_its_user_alone_reads_passwords(tmp_path):
    text = (written(tmp_path, "systemd") / "amcast-collectors.service").read_text()
    assert "chgrp -R amcast /etc/amcast" in text


def test_the_compose_file_is_one_by_the_specifications_schema(tmp_path):
    options = ["--image", "host:5000/team/amcast:1.2", "--replicas", "3"]
    invoke("compose", *options, "--out", str(tmp_path))
    document = yaml.safe_load((tmp_path / "compose.yaml").read_text())
    schema = json.loads((HERE / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(document)
    services = document["services"]
    assert services["collectors"]["image"] == "host:5000/team/amcast:1.2"
    assert services["collectors"]["deploy"]["replicas"] == 3
    assert services["apply"]["build"]["dockerfile"] == "Containerfile"
    for name, service in services.items():  # what a service waits for exists
        assert service.get("depends_on", {}).keys() <= services.keys() - {name}


def test_the_container_runs_as_a_user_and_names_a_command_that_exists(tmp_path):
    text = (written(tmp_path, "compose") / "Containerfile").read_text()
    lines = re.sub(r"\\\n", " ", text).splitlines()
    told = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    last = dict(told)
    assert last["USER"] == "10001"
    check = json.loads(last["HEALTHCHECK"].partition("CMD ")[2])
    compile(check[2], "the health check", "exec")
    assert json.loads(last["ENTRYPOINT"]) == ["amcast"]
    assert json.loads(last["CMD"]) == ["collectors", "run"]


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    return written(tmp_path_factory.mktemp("amcast"), "helm")


def test_the_charts_values_fit_its_schema(chart):
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(values)
    assert (values["bootstrap"], values["topic"]) == (BROKERS, "A")
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**values, "topic": "A/B"})


@pytest.fixture(scope="module")
def helm():
    program = shutil.which("helm", path=f"{ROOT / '.helm'}:{os.environ['PATH']}")
    assert program, "make helm builds it"
    return program


@pytest.mark.helm
def test_helm_lints_the_chart_and_renders_what_kubernetes_reads(chart, helm):
    assert "0 chart(s) failed" in run(helm, "lint", "--strict", chart)
    rendered = list(yaml.safe_load_all(run(helm, "template", "r", chart)))
    assert {document["kind"] for document in rendered} == {"Deployment", "PodDisruptionBudget"}
    (deployment,) = [each for each in rendered if each["kind"] == "Deployment"]
    template = deployment["spec"]["template"]
    selected = deployment["spec"]["selector"]["matchLabels"]
    assert selected.items() <= template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    told = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (told["AMCAST_BOOTSTRAP"], told["AMCAST_TOPIC"]) == (BROKERS, "A")
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True


@pytest.mark.helm
def test_helm_renders_every_option_of_the_chart(chart, helm):
    options = [
        "configSecret=login", "podMonitor.enabled=true", "prometheusRule.enabled=true",
        "podAnnotations.a=b", "nodeSelector.disk=ssd", "imagePullSecrets[0].name=key",
        "tolerations[0].key=only",
    ]  # fmt: skip
    words = [word for option in options for word in ("--set", option)]
    rendered = list(yaml.safe_load_all(run(helm, "template", "r", chart, *words)))
    by_kind = {document["kind"]: document for document in rendered}
    rules = yaml.safe_load((chart / "files" / "amcast-rules.yaml").read_text())
    assert by_kind["PrometheusRule"]["spec"] == rules
    assert by_kind["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["path"] == "/metrics"
    pod = by_kind["Deployment"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["secret"]["secretName"] == "login"


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_rules(tmp_path):
    written(tmp_path, "prometheus-rules")
    assert "rules found" in run("promtool", "check", "rules", tmp_path / "amcast-rules.yaml")


@pytest.mark.needs("promtool")
def test_each_alert_fires_when_it_should_and_none_does_on_a_quiet_system(tmp_path):
    written(tmp_path, "prometheus-rules")
    shutil.copy(HERE / "alerts.yaml", tmp_path)
    run("promtool", "test", "rules", "alerts.yaml", cwd=tmp_path)
    rules = yaml.safe_load((tmp_path / "amcast-rules.yaml").read_text())["groups"][0]["rules"]
    text = (HERE / "alerts.yaml").read_text()
    for rule in rules:  # once where it stays quiet, once where it fires
        assert text.count(rule["alert"]) == 2


def test_each_alert_says_what_it_means_and_has_its_section_in_the_runbook():
    text = generate("prometheus-rules", DeploymentSettings(bootstrap=BROKERS, topic="A"))
    (group,) = yaml.safe_load(text["amcast-rules.yaml"])["groups"]
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert [rule["alert"] for rule in group["rules"]] == headings
    assert len(headings) >= 8
    for rule in group["rules"]:
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
