"""The exhaustive search: small worlds have no violation; in broken ones it finds a dead end.

The larger worlds are `make model`'s.
"""

from bench.search.explorer import ScopeExplorer
from bench.search.scopes import SCOPES
from collectors.core.collector_core import CollectorCore


def test_a_scope_has_no_violation_and_comes_to_rest():
    for name in ("restart", "transaction", "chain"):
        exploration = ScopeExplorer(SCOPES[name]).explore()
        assert (exploration.violation, exploration.path) == ("", ())
        assert exploration.states > 3000
        assert exploration.at_rest > 800


def test_a_record_that_is_not_written_again_is_a_dead_end(monkeypatch):
    monkeypatch.setattr(CollectorCore, "append_failed", lambda _: None)
    exploration = ScopeExplorer(SCOPES["failed"]).explore()
    assert exploration.violation == "from here no steps lead to a state at rest"
    assert exploration.path[-1].endswith("is lost")
