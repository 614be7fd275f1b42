"""Histories of a nemesis run: restarts are correct, and real violations are found."""

import json

import pytest

from bench.nemesis.histories import read_histories
from multicast.properties import check_all

INTERESTS = {"C1": ["P1", "P2", "P3"], "C2": ["P2", "P3", "P4"]}
SETS = [["P1"], ["P2"], ["P1", "P3"], ["P2", "P3", "P4"], ["P4"]]
CALLS, RESTART, COMMITTED, KILLED = 60, 30, 20, 26
MS = 1_000_000


class Story:
    """The files of a correct run, as lists of lines, for tests to change.

    Producer p1 keeps its own order. It is killed after 30 calls, the last three without an outcome:
    two of those messages stand in the logs. Consumer C1 is killed after 26 deliveries and goes on
    from its 20th.
    """

    def __init__(self):
        self.messages = []  # (message ID, to, value), in the agreed order
        self.files = {
            f"p1-{name}": [{"producer": "p1", "instance": name, "ns": 1, "fifo": True}]
            for name in "ab"
        }
        offsets = {}
        for place in range(CALLS):
            instance, number = ("a", place) if place < RESTART else ("b", place - RESTART)
            to = SETS[place % len(SETS)]
            log = "+".join(to)
            lines = self.files[f"p1-{instance}"]
            lines.append({"begun": number, "to": to, "ns": (place + 1) * MS})
            if place == RESTART - 1:  # its line was written, and nothing was sent
                continue
            message_id = f"{log}:{offsets.setdefault(log, 0)}"
            offsets[log] += 1
            self.messages.append((message_id, to, f"p1/{instance}/{number}"))
            if place < RESTART - 3 or place >= RESTART:
                accepted = {"outcome": "accepted", "message_id": message_id}
                lines.append({"call": number, **accepted, "ns": (place + 2) * MS})
        self.files["p1-b"] += [{"dropped": 4}, {"dropped": 7}, {"end": True, "ns": CALLS * MS}]
        for name in INTERESTS:
            self.deliver(name, "a", 0)
            self.deliver(f"{name}.audit", "audit", 0)
        self.files["C1-a"] = self.files["C1-a"][: 1 + KILLED]
        self.deliver("C1", "b", COMMITTED)

    def of(self, name):
        """The messages that are addressed to a consumer, in order."""
        interest = INTERESTS[name.removesuffix(".audit")]
        return [one for one in self.messages if not set(interest).isdisjoint(one[1])]

    def deliver(self, name, instance, start):
        interest = INTERESTS[name.removesuffix(".audit")]
        who = {"consumer": name, "instance": instance}
        lines = [{**who, "interest": interest, "from": f"1/K1/{start}/0/0", "ns": 1}]
        for place, (message_id, to, value) in enumerate(self.of(name)[start:], start):
            line = {**who, "sequence": place - start, "message_id": message_id, "to": to}
            line |= {"epoch": 1, "ns": (place + 5) * MS, "cursor": f"1/K1/{place + 1}/0/0"}
            lines.append(line | ({"value": value} if instance == "audit" else {}))
        self.files[f"{name}-{instance}"] = [*lines, {**who, "end": True, "ns": CALLS * MS}]

    def renumber(self):
        """Number the deliveries of every process again."""
        for lines in self.files.values():
            for place, line in enumerate(line for line in lines if "sequence" in line):
                line["sequence"] = place

    def write(self, folder, torn=("p1-a", "C1-a")):
        """Write the files; those of killed processes end with half a line."""
        for name, lines in self.files.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            text += '{"begun": 30, "to"' if name in torn else ""
            (folder / name).write_text(text)
        return read_histories(folder.iterdir())


@pytest.fixture
def story():
    return Story()


def judged(story, folder):
    """Return the violated guarantees and the kinds of findings."""
    story.renumber()
    run = story.write(folder)
    history = run.history()
    violated = {verdict.guarantee for verdict in check_all(history).violations}
    return violated | {finding.kind for finding in run.findings(history)}


def test_kills_and_restarts_from_a_cursor_are_no_faults(story, tmp_path):
    run = story.write(tmp_path)
    history = run.history()
    report = check_all(history)
    assert {v.guarantee: v.verdict for v in report.verdicts if v.verdict != "holds"} == {
        "genuineness": "not checked"
    }
    assert run.findings(history) == []
    counts = run.counts
    assert (counts.begun, counts.accepted, counts.failed, counts.unknown) == (60, 57, 0, 3)
    assert (counts.dropped, counts.torn, counts.instances) == (7, 2, 7)
    assert counts.deliveries == KILLED + len(story.of("C1")) - COMMITTED + len(story.of("C2"))
    assert run.interests == {name: tuple(interest) for name, interest in INTERESTS.items()}


def deliveries(story, name):
    return [line for line in story.files[name] if "sequence" in line]


def remove(story, message_id, *names):
    for name in names:
        before = story.files[name]
        after = [line for line in before if line.get("message_id") != message_id]
        assert len(after) < len(before)
        story.files[name] = after


def lose_one(story):
    remove(story, deliveries(story, "C1-b")[8]["message_id"], "C1-b")


def lose_one_that_another_instance_had(story):
    remove(story, deliveries(story, "C1-b")[3]["message_id"], "C1-b")


def lose_one_between_two_instances(story):
    # The first instance died before it, the second began behind it.
    story.files["C1-a"] = story.files["C1-a"][: 1 + COMMITTED]
    del story.files["C1-b"][1]


def double_one(story):
    lines = story.files["C2-a"]
    lines.insert(12, dict(lines[9]))


def swap_two(story):
    lines = story.files["C2-a"]
    lines[9], lines[10] = lines[10], lines[9]


def send_in_another_order(story):
    calls = [
        [line for line in story.files["p1-b"] if number in (line.get("begun"), line.get("call"))]
        for number in (10, 12)
    ]
    for first, second in zip(*calls, strict=True):
        for key in {"to", "message_id"} & first.keys():
            first[key], second[key] = second[key], first[key]


def lose_one_everywhere(story):
    message_id = next(one[0] for one in story.messages[40:] if one[1] == ["P1"])
    remove(story, message_id, "C1-b", "C1.audit-audit")


def invent_one(story):
    # At the end of a log, and of no call: an unknown outcome may be any message.
    for name in ("C1-b", "C1.audit-audit"):
        line = {**story.files[name][-2], "message_id": "P1:99", "to": ["P1"]}
        line |= {"value": "p9/a/1"} if name.endswith("audit") else {}
        story.files[name].insert(-1, line)


def append_one_twice(story):
    # An unknown outcome allows for the second copy's ID; its value does not.
    value = deliveries(story, "C1.audit-audit")[3]["value"]
    to = deliveries(story, "C1.audit-audit")[3]["to"]
    story.files["p1-a"].append({"begun": RESTART, "to": to, "ns": 1})
    for name in ("C1-b", "C1.audit-audit", "C2-a", "C2.audit-audit"):
        if set(to) & set(INTERESTS[name[:2]]):
            line = {**story.files[name][-2], "message_id": f"{'+'.join(to)}:99", "to": to}
            line |= {"value": value} if name.endswith("audit") else {}
            story.files[name].insert(-1, line)


def swap_two_values(story):
    first, second = (
        [line for line in deliveries(story, "C1.audit-audit") if line["to"] == ["P1"]][index]
        for index in (1, 2)
    )
    first["value"], second["value"] = second["value"], first["value"]


def store_a_failed_one(story):
    lines = story.files["p1-b"]
    place = next(place for place, line in enumerate(lines) if "call" in line)
    lines[place] = {"call": lines[place]["call"], "outcome": "failed", "ns": 1}


def deliver_to_another_set(story):
    for line in deliveries(story, "C1.audit-audit"):
        if line["value"] == "p1/a/2":
            line["to"] = ["P1"]


def restart_before_the_cursor(story):
    story.files["C1-b"][0]["from"] = f"1/K1/{COMMITTED + 3}/0/0"


def restart_at_a_cursor_of_nobody(story):
    story.files["C1-b"][0]["from"] = "1/K1/7000/0/0"


ORDER = {"uniform prefix order", "uniform acyclic order"}


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lose_one, {"uniform prefix order", "uniform agreement", "validity"}),
        (lose_one_that_another_instance_had, {"uniform prefix order", "replay"}),
        (lose_one_between_two_instances, {"uniform agreement", "validity", "began elsewhere"}),
        (double_one, {"uniform integrity"}),
        (swap_two, {*ORDER, "fifo order"}),
        (send_in_another_order, {"fifo order"}),
        (lose_one_everywhere, {"validity", "not at its ID"}),
        (invent_one, {"uniform integrity", "invented"}),
        (append_one_twice, {"appended twice"}),
        (swap_two_values, {"value at another ID"}),
        (store_a_failed_one, {"uniform integrity", "failed but stored"}),
        (deliver_to_another_set, {"uniform integrity", "other destination"}),
        (restart_before_the_cursor, {"began elsewhere"}),
        (restart_at_a_cursor_of_nobody, {"began elsewhere"}),
    ],
)
def test_each_fault_is_found_by_its_name(story, tmp_path, spoil, kinds):
    spoil(story)
    assert judged(story, tmp_path) >= kinds
