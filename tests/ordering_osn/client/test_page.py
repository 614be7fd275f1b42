"""The example of docs/multichain-client.md runs as it stands there."""

import re
from pathlib import Path

from tests.ordering_osn.helpers.chains import USER_FOLDER, transaction
from tests.ordering_osn.helpers.multi import ScriptedNode, World, alone, scripted_elsewhere

PAGE = Path(__file__).parents[3] / "docs" / "multichain-client.md"


def test_the_example_submits_waits_and_reads(capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    world = World(entries=[alone("chain-a")], delivers=True)
    with scripted_elsewhere(ScriptedNode(world, ["busy"])) as nodes:
        names = {
            "MSP": USER_FOLDER / "msp",
            "NODES": nodes,
            "envelope_a": transaction(chain="chain-a"),
            "envelope_b": transaction(chain="chain-b"),
        }
        exec(compile(example, str(PAGE), "exec"), names)
    (bundle_id,) = world.taken
    assert capsys.readouterr().out.splitlines() == [
        "chain-a 7 1",
        "chain-b 7 1",
        f"{b'0'.hex()}  ('chain-a',)",
        f"{b'1'.hex()} {bundle_id.hex()} ('chain-a', 'chain-b')",
    ]
