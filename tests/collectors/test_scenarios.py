"""Stories in `scenarios/*.txt`: commands, and after "----" what the cores answered.

A block is a command line, then "----", then the expected answer; blocks stand apart by a blank
line, and lines that begin with "#" tell the story. `python -m tests.collectors.test_scenarios`
writes the answers anew: read the difference before you keep it.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from multicast.consuming.subscription import Bounds
from multicast.control import log_partition, stream_partition
from multicast.errors import AmcastError
from multicast.messages import skip_header
from multicast.order.records import OwnRecord, Ticket, encode
from tests.helpers.in_memory_cluster import InMemoryCluster, in_words
from tests.helpers.plans import tag_in

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


class Story:
    """Carries out the commands of one script."""

    def __init__(self):
        self.cluster = InMemoryCluster()

    def tell(self, line):
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        try:
            answer = getattr(self, f"do_{name}")(*names, **options)
        except AmcastError as error:
            answer = [f"{type(error).__name__}: {error}"]
        return answer or ["nothing"]

    # -- setting --------------------------------------------------------------------------------

    def plan(self, line):
        """Apply "plan P1 P2 P3 : K1=P1,P2 K2=P2,P3<K1 : C1=P1,P2@K1 C2=P3@-"."""
        logs, nodes, consumers = (part.split() for part in line.partition(" ")[2].split(":"))
        collectors, subscriptions = {}, {}
        for entry in nodes:
            name, rest = entry.split("=")
            bag, _, parent = rest.partition("<")
            collectors[name] = (bag.split(","), parent or None)
        for entry in consumers:
            name, rest = entry.split("=")
            interest, _, reads = rest.partition("@")
            subscriptions[name] = (interest.split(","), None if reads == "-" else reads)
        plan = self.cluster.plan(logs, collectors, subscriptions)
        return [f"epoch {plan.epoch}"]

    def do_limits(self, **options):
        self.cluster.limits = replace(
            self.cluster.limits, **{name: int(value) for name, value in options.items()}
        )
        return ["ok"]

    def do_bounds(self, **options):
        self.cluster.bounds = Bounds(**{name: int(value) for name, value in options.items()})
        return ["ok"]

    # -- the cluster ----------------------------------------------------------------------------

    def do_multicast(self, *sets):
        return [" ".join(self.cluster.multicast(to) for to in sets)]

    def do_transaction(self, log, *, end):
        """Append a message in a transaction that commits or aborts at once."""
        partition = log_partition(self.cluster.control().plan().log(log))
        transaction = self.cluster.log.transaction()
        offset = transaction.append(partition, b"in a transaction")
        getattr(transaction, end)()
        return [f"{log}:{offset} {end}s"]

    def do_skip(self, log):
        partition = log_partition(self.cluster.control().plan().log(log))
        return [f"{log}:{self.cluster.log.write(partition, b'', headers=(skip_header(log),))}"]

    def do_trim(self, what, *, below):
        plan = self.cluster.control().plan()
        partition = (
            log_partition(plan.log(what)) if plan.has_log(what) else stream_partition(plan, what)
        )
        self.cluster.log.trim(partition, int(below))
        return ["ok"]

    def do_garbage(self, collector, text):
        plan = self.cluster.control().plan()
        self.cluster.log.write(stream_partition(plan, collector), text.encode())
        return ["ok"]

    def do_mark(self):
        return [f"{log} up to {offset}" for log, offset in self.cluster.mark().items()]

    def do_finish(self):
        ends = self.cluster.finish()
        if ends is None:
            return ["not yet"]
        return [" ".join(f"{log} ends at {offset}" for log, offset in ends.items())]

    # -- collectors -----------------------------------------------------------------------------

    def do_node(self, name, *, epoch=None, checkpoint="no"):
        node = self.cluster.node(
            name, epoch=epoch and int(epoch), checkpoint=checkpoint == "newest"
        )
        return [f"reads its own stream from {node.core.own.offset_next}"]

    def do_look(self, name, *logs):
        self.cluster.nodes[name].look(*logs)
        return ["ok"]

    def do_ticket(self, log, *, upto):
        """Write a producer's ticket for the message that makes the log end at `upto`."""
        plan = self.cluster.control().plan()
        top = plan.top(log).name
        record = OwnRecord((Ticket(plan.number(log), 1, int(upto)),))
        self.cluster.log.write(stream_partition(plan, top), encode(tag_in(plan, top), record))
        return [in_words(plan, record)]

    def do_later(self, *, ms):
        """Let time pass, and the collectors tick."""
        self.cluster.now += int(ms)
        for node in self.cluster.nodes.values():
            node.core.tick()
        return ["ok"]

    def do_step(self, name):
        return self.cluster.nodes[name].step()

    def do_store(self, name, *count):
        return self.cluster.nodes[name].store(int(count[0]) if count else None)

    def do_lose(self, name):
        self.cluster.nodes[name].lose()
        return ["ok"]

    def do_settle(self, *names):
        self.cluster.settle(*names)
        return ["ok"]

    def do_crash(self, name):
        (self.cluster.nodes if name in self.cluster.nodes else self.cluster.consumers).pop(name)
        return ["ok"]

    # -- consumers ------------------------------------------------------------------------------

    def do_consumer(self, name, *, cursor=None):
        return [f"begins at {self.cluster.consumer(name, cursor=cursor).cursor.place}"]

    def do_order(self, name):
        self.cluster.consumers[name].read_order()
        return ["ok"]

    def do_payload(self, name, *logs):
        self.cluster.consumers[name].read_payloads(*logs)
        return ["ok"]

    def do_paused(self, name):
        delivery = self.cluster.consumers[name].delivery
        return [delivery.logs[number].name for number in delivery.paused()]

    def do_deliver(self, name, *, most="1000"):
        consumer = self.cluster.consumers[name]
        messages = consumer.deliver(int(most))
        return [
            *([" ".join(messages)] if messages else ["nothing"]),
            f"stands at {consumer.cursor.place}",
        ]

    def do_drain(self, name):
        messages = self.cluster.consumers[name].drain()
        return [" ".join(messages)] if messages else []


def blocks(text):
    """Take a script apart: (comment or command, expected answer or None)."""
    for block in text.strip().split("\n\n"):
        head, line, expected = block.partition("\n----\n")
        yield (head, expected.splitlines()) if line else (head.removesuffix("\n----"), None)


def played(text):
    """Play a script; give it with the answers as they are."""
    story = Story()
    outcomes = []
    for head, _ in blocks(text):
        comments = [line for line in head.splitlines() if line.startswith("#")]
        commands = [line for line in head.splitlines() if not line.startswith("#")]
        lines = [*comments]
        for command in commands:
            planning = command.startswith("plan ")
            answer = story.plan(command) if planning else story.tell(command)
            lines += [command, "----", *answer] if command == commands[-1] else [command]
        outcomes.append("\n".join(lines))
    return "\n\n".join(outcomes) + "\n"


@pytest.mark.parametrize("script", SCENARIOS, ids=lambda path: path.stem)
def test_story_goes_as_written(script):
    text = script.read_text()
    assert played(text) == text


def test_there_are_enough_stories():
    assert len(SCENARIOS) >= 12


if __name__ == "__main__":
    for path in SCENARIOS:
        path.write_text(played(path.read_text()))
