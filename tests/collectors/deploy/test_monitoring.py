"""A real Prometheus scrapes a live system by the documented configuration, rules and dashboard."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from bench.harness.processes import end
from collectors.deploy.dashboard import PANELS
from collectors.deploy.files import DeploymentSettings, generate
from multicast import Consumer, Producer
from multicast.local.broker import free_ports
from multicast.metrics import ClientMetrics
from tests.collectors.deploy.shared import SharedCollectors
from tests.helpers.plans import with_foreign_work
from tests.helpers.system import System, until

pytestmark = pytest.mark.needs("prometheus")
ROOT = Path(__file__).parents[3]
DEPLOYMENT = DeploymentSettings(bootstrap="k1.example:9092", topic="A")
METRIC = re.compile(r"\b(?:amcast|process|scrape)_\w+|\bup\b")


def documented(*targets):
    """The configuration of the page, for the targets of each of its jobs."""
    page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    config = yaml.safe_load(block)
    for job, addresses in zip(config["scrape_configs"], targets, strict=True):
        job["static_configs"][0]["targets"] = addresses
    return config


class Prometheus:
    """A Prometheus on the loopback, with its data below a folder; a context manager."""

    def __init__(self, folder, collectors, clients):
        (folder / "prometheus.yaml").write_text(json.dumps(documented(collectors, clients)))
        for name, text in generate("prometheus-rules", DEPLOYMENT).items():
            (folder / name).write_text(text)
        (port,) = free_ports(1)
        self._address = f"127.0.0.1:{port}"
        self._command = [
            shutil.which("prometheus"), f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={self._address}",
        ]  # fmt: skip
        self._log = folder / "prometheus.log"

    def __enter__(self):
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out)
        until(self._ready, "an answer of Prometheus")
        return self

    def __exit__(self, *_):
        self._process.terminate()
        end(self._process)

    def _ready(self):
        assert self._process.poll() is None, self._log.read_text()
        with contextlib.suppress(OSError):
            return bool(self.ask("label/__name__/values"))
        return False

    def ask(self, path, **query):
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def series(self, expression):
        return self.ask("query", query=expression)["result"]

    def firing(self):
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@contextlib.contextmanager
def application(system):
    """A user's process: it multicasts to every set in turns, and delivers; gives its address."""
    sets = [log.to for log in system.plan.logs]
    ended = threading.Event()

    def work():
        while not ended.wait(0.05):
            for to in sets:
                producer.multicast(b"x", to=to)
            if consumer.poll(0):
                consumer.commit()

    place = {"topic": system.topic, "driver": system.driver}
    registry = CollectorRegistry()
    with (
        Producer(**place) as producer,
        Consumer(**place, name=system.plan.consumers[0].name, committed=False) as consumer,
    ):
        registry.register(ClientMetrics(producer, consumer))
        server, serving = start_http_server(0, "127.0.0.1", registry)
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            ended.set()
            thread.join()
            server.shutdown()
            server.server_close()
            serving.join()


@pytest.fixture(scope="module")
def live(kafka_cluster, tmp_path_factory):
    """Two processes of collectors that check, an application, and a Prometheus that scrapes all."""
    folder = tmp_path_factory.mktemp("live")
    bootstrap = kafka_cluster.bootstrap
    with (
        System(bootstrap, with_foreign_work(), folder) as system,
        SharedCollectors(bootstrap, system.topic, folder, "--check", processes=2) as shared,
        application(system) as client,
    ):
        pages = [shared.page(number).removeprefix("http://") for number in range(2)]
        with Prometheus(folder, pages, [client]) as prometheus:
            until(lambda: len(prometheus.series("up == 1")) == 3, "a scrape of all processes")
            system.append_garbage(system.plan.collectors[0].name)  # a void record has a metric
            void = "amcast_collector_void_total"
            until(lambda: prometheus.series(void), "a scrape after the garbage")
            yield prometheus, shared


def test_every_query_of_the_dashboard_has_a_result(live):
    prometheus, _ = live
    document = json.loads(generate("grafana", DEPLOYMENT)["amcast-dashboard.json"])
    queries = [
        target["expr"].replace("$__rate_interval", "30s").replace("$collector", ".*")
        for panel in document["panels"]
        for target in panel["targets"]
    ]
    assert len(queries) > len(PANELS)
    assert not [query for query in queries if "$" in query]
    for query in queries:  # a rate needs two scrapes
        until(lambda query=query: prometheus.series(query), f"a result of {query}")


def test_every_metric_of_a_rule_exists_and_no_rule_fails(live):
    prometheus, _ = live

    def evaluated():
        (group,) = prometheus.ask("rules")["groups"]
        return all(rule["health"] != "unknown" for rule in group["rules"])

    until(evaluated, "an evaluation of all rules")
    (group,) = prometheus.ask("rules")["groups"]
    assert len(group["rules"]) >= 8
    for rule in group["rules"]:
        assert rule["health"] == "ok", rule
        named = set(METRIC.findall(rule["query"]))
        assert named
        named -= {"amcast_log_lost_offset"}  # only of a log that has lost its end
        until(lambda named=named: named <= known(prometheus), f"the metrics of {rule['name']}")


def known(prometheus):
    return set(prometheus.ask("label/__name__/values"))


def test_a_killed_process_raises_its_alert_until_it_is_back(live):
    # Init.
    prometheus, shared = live
    assert "AmcastCollectorsDown" not in prometheus.firing()

    # Test.
    shared.kill(0)
    began = time.monotonic()
    until(lambda: "AmcastCollectorsDown" in prometheus.firing(), "the alert", pause=0.2)

    # Check: the other process acts for all; nobody is told that nothing is ordered.
    seconds = time.monotonic() - began
    sys.stdout.write(f"AmcastCollectorsDown fires {seconds:.1f} s after the kill\n")
    assert "AmcastNoCollectors" not in prometheus.firing()
