"""The client program: a role by its name, its task, its commands; how it ends."""

import signal
import subprocess
from dataclasses import dataclass

import pytest

from bench.harness.client import command
from bench.harness.hosts import ClientProcess
from multicast.errors import AmcastError, TimedOut


@dataclass
class Add:
    """Add so much to what each command says."""

    much: int


def add(task: Add, talk):
    """Answer each command; None ends it, as an error of its own."""
    for said in talk.commands():
        if said["value"] is None:
            raise TimedOut("nothing came")
        talk.answer({"sum": said["value"] + task.much})


def waits(_task: Add, talk):
    """End when told to."""
    talk.answer({"ready": True})
    while not talk.stop:
        signal.pause()
    talk.answer({"stopped": True})


def test_a_client_answers_commands_in_order_and_ends_with_its_harness(tmp_path):
    with ClientProcess("adder", add, Add(2), tmp_path) as client:
        client.tell(value=1)
        client.tell(value=5)
        assert [client.answer(60)["sum"] for _ in range(2)] == [3, 7]
    with pytest.raises(AmcastError, match="adder has ended"):
        client.answer(60)


def test_an_error_ends_it_with_a_sentence_and_the_exit_code_of_the_error(tmp_path):
    with ClientProcess("adder", add, Add(2), tmp_path) as client:
        client.tell(value=None)
        with pytest.raises(AmcastError, match=r"adder has ended; its log ends: .*: nothing came"):
            client.answer(60)
    done = subprocess.run(
        command(add, Add(2)), input='{"value": null}\n', capture_output=True, text=True, check=False
    )
    assert done.returncode == TimedOut.exit_code
    assert done.stderr == "tests.bench.test_client:add: nothing came\n"


def test_it_is_asked_to_end_by_sigterm():
    with subprocess.Popen(command(waits, Add(0)), stdout=subprocess.PIPE, text=True) as process:
        assert "ready" in process.stdout.readline()
        process.terminate()
        assert "stopped" in process.stdout.readline()
        assert process.wait(60) == 0
