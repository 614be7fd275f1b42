"""`run.sh` of each example does all itself, ends what it started, and fails on a broken promise."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from multicast import Producer
from tests.helpers.example_programs import EXAMPLES, ROOT

PATIENCE_S = 1500
pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


def run(script, work, bootstrap):
    """Run the script; give its exit code and outputs. Nothing of it may stay."""
    work.mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("AMCAST_")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env["TMPDIR"] = str(work)
    if bootstrap:
        env["AMCAST_BOOTSTRAP"] = bootstrap
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([script], env=env, start_new_session=True, **pipes) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert not list(work.iterdir())
    return process.returncode, out, err


@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXAMPLES.glob("*/run.sh")))
def test_an_example_runs_in_a_checkout_whose_path_has_blanks(name, kafka_cluster, tmp_path):
    """`cdc` on a broker of its own, as for a user: another test writes to its source's topics."""
    (tmp_path / "a checkout").symlink_to(ROOT)
    script = tmp_path / "a checkout" / "examples" / name / "run.sh"
    bootstrap = None if name == "cdc" else kafka_cluster.bootstrap
    code, out, err = run(script, tmp_path / "a folder", bootstrap)
    assert code == 0, err
    assert 0 < len(out.splitlines()) <= 15


def test_an_example_fails_where_its_promise_does_not_hold(kafka_cluster, tmp_path):
    shutil.copy(EXAMPLES / "lib.sh", tmp_path)
    topic = f"accounts-{time.time_ns()}"
    example = shutil.copytree(EXAMPLES / "accounts", tmp_path / topic)
    interests = example / "interests.toml"
    text = interests.read_text(encoding="utf-8").replace('"accounts"', f'"{topic}"')
    interests.write_text(text, encoding="utf-8")
    there = (example / "run.sh", tmp_path / "work", kafka_cluster.bootstrap)
    assert run(*there)[0] == 0
    debit = json.dumps({"from": "P1", "to": "P2", "amount": 1_000_000})
    with Producer(kafka_cluster.bootstrap, topic=topic) as producer:
        producer.multicast(debit.encode(), to={"P1", "P2", "P3"}).accepted()
    code, out, err = run(*there)
    assert code == 1
    assert json.loads(out.splitlines()[-1])["lowest"] < 0
    assert "the example ended with exit code 1" in err
