"""`amcast local up --secure`: users sign in over TLS, with the rights of `amcast generate acls`."""

import json
import os
import re
import shlex
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from multicast.cli.commands import build
from multicast.local.cluster import LocalCluster
from tests.collectors.deploy.test_acls import CONSUMERS
from topology.interests import from_document
from topology.planner.solver import plan as solve


def amcast(words, stdin="", code=0):
    words = shlex.split(words)
    done = CliRunner().invoke(build(words), words, input=stdin)
    assert done.exit_code == code, (words, done.output, done.exception)
    return done


@pytest.mark.timeout(900)
@pytest.mark.kafka
@pytest.mark.slow
def test_who_signs_in_has_the_rights_that_were_granted_and_no_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = {"topic": "A", "partitions": ["P1", "P2"], "consumer": CONSUMERS, "destinations": []}
    (tmp_path / "plan.json").write_text(json.dumps(solve(from_document(document)).to_json()))
    try:
        amcast("local up --secure --dir local --timeout 300")
        amcast("local down --dir local")
        LocalCluster("local", settings={"num.io.threads": "2"}, outlives=True).start()
        monkeypatch.setenv("AMCAST_BOOTSTRAP", LocalCluster(tmp_path / "local").bootstrap)
        assert "running" in amcast("local status --dir local").output
        os.link("local/secure/operator/amcast.toml", "amcast.toml")
        amcast("topology apply plan.json --timeout 240")
        acls = amcast("generate acls plan.json --role send --principal User:me").output
        file = amcast("local user me --dir local --rights -", acls).output.split()[-1]
        Path(file).replace("amcast.toml")
        assert "1 accepted" in amcast("send --to P1 --timeout 240", "x\n").output
        refused = amcast("receive --name C1 --until-end --timeout 240", code=1).exception
        assert re.search("User me lacks the right (Read|Describe) on topic A", str(refused))
        modes = [stat.S_IMODE(Path(path).stat().st_mode) for path in ("local", "amcast.toml")]
        assert modes == [0o700, 0o600]
    finally:
        amcast("local down --wipe --dir local")
    assert not Path("local").exists()
