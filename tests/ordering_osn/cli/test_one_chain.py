"""`amcast osn join`, `broadcast`, `deliver` and `inspect`, at a node on a log in memory."""

import json
from itertools import pairwise

import pytest

from multicast.errors import AmcastError
from ordering_osn.chain.transactions import transaction_id
from tests.helpers.small import until
from tests.ordering_osn.helpers.commands import READER, amcast, at_nodes, envelope_file, lines
from tests.ordering_osn.helpers.small import Nodes, chains_plan, healthy, quick, transaction

pytestmark = pytest.mark.slow


def test_the_commands_join_order_print_and_inspect_a_chain(tmp_path, capsys):
    with Nodes(chains_plan("chain-a", "chain-b"), tmp_path) as osn:
        node = osn.running("n1", quick())
        block = tmp_path / "chain-b.block"
        block.write_bytes(quick("chain-b", timeout="50ms"))
        home = ("--folder", tmp_path / "n1")
        for _ in range(2):  # twice is once
            amcast("osn", "join", "--genesis-block", block, *home, "-o", "json")
            assert json.loads(capsys.readouterr().out)["channel"] == "chain-b"
        until(lambda: node.names() == ["chain-a", "chain-b"])
        healthy(node)
        sent = [transaction("chain-b") for _ in range(12)]
        good = envelope_file(tmp_path / "good", sent)
        bad = envelope_file(tmp_path / "bad", [b"abc"])

        def use(address):
            who = ("--node", address, *READER)
            amcast("osn", "broadcast", good, *who, "--wait")
            receipts = lines(capsys)
            amcast("osn", "deliver", *who, "--channel", "chain-b")
            printed = lines(capsys)
            # The first envelope that is refused ends it, with a sentence and 1.
            with pytest.raises(AmcastError, match="answered 400") as refused:
                amcast("osn", "broadcast", bad, "--node", address)
            assert refused.value.exit_code == 1
            return receipts, printed

        receipts, printed = at_nodes([node], use)
        assert [receipt["transaction"] for receipt in receipts] == list(map(transaction_id, sent))
        assert {receipt["chain"] for receipt in receipts} == {"chain-b"}
        for receipt in receipts:
            there = printed[receipt["block"]]["transactions"][receipt["index"]]
            assert there["transaction"] == receipt["transaction"]
        for before, after in pairwise(printed):
            assert after["previous_hash"] == before["hash"]
        capsys.readouterr()
        amcast("osn", "inspect", *home, "--channel", "chain-b", "--block", "1")
        assert json.loads(capsys.readouterr().out) == printed[1]
