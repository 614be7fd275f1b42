"""The model checker: small worlds have no violation; with a broken rule it finds one.

The larger worlds are `make model`'s.
"""

import pytest

from bench.exhaustive import Explorer, main
from bench.tickets.exhaustive import ScopeExplorer
from bench.tickets.scopes import SCOPES
from multicast.tickets.collector import TicketCollector


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("roots", "children", "messages", "crashes", "losses"),
    [
        pytest.param(2, 1, 3, 0, 0, marks=pytest.mark.campaign),
        (1, 2, 1, 1, 1),
        (1, 1, 4, 0, 0),
    ],
)
def test_no_interleaving_breaks_the_order_or_leaves_something_undone(
    roots, children, messages, crashes, losses
):
    exploration = Explorer(
        roots=roots, children=children, messages=messages, crashes=crashes, losses=losses
    ).explore()
    assert exploration.violation == ""
    assert exploration.states > 200
    assert exploration.at_rest > 0


@pytest.mark.slow
def test_without_the_digest_the_shortest_way_to_a_wrong_order_is_found():
    exploration = Explorer(rule="possible", roots=1, children=1, messages=2, crashes=0).explore()
    assert exploration.violation == "the child orders P3:0, the root P2:0 P3:0"
    assert len(exploration.path) == 8
    assert exploration.path[-2:] == ("lost: child 1's append", "child 1's append lands")


def test_the_command_prints_the_number_of_states(capsys):
    arguments = [
        "--order-version",
        "1",
        "--roots",
        "1",
        "--children",
        "1",
        "--messages",
        "1",
        "--crashes",
        "0",
    ]
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("states ")


def test_a_scope_of_version_2_has_no_violation_and_comes_to_rest():
    for name in ("restart", "transaction", "chain"):
        exploration = ScopeExplorer(SCOPES[name]).explore()
        assert (exploration.violation, exploration.path) == ("", ())
        assert exploration.states > 3000
        assert exploration.at_rest > 800


def test_a_record_that_is_not_written_again_is_a_dead_end(monkeypatch):
    monkeypatch.setattr(TicketCollector, "append_failed", lambda _: None)
    exploration = ScopeExplorer(SCOPES["failed"]).explore()
    assert exploration.violation == "from here no steps lead to a state at rest"
    assert exploration.path[-1].endswith("is lost")
