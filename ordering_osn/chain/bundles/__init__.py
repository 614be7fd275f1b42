"""Transactions over several chains: what a bundle is, and the rule by which it counts.

    wire_format.py  protobuf's wire format, as far as the rule depends on it
    parts.py        what ordering reads of a part's envelope
    bundle.py       a bundle: made, read from a stranger's bytes, its signature verified
    log_records.py  the records of bundles and config markers in the log of a set
    rule.py         which bundles of a log count: the state machine over one log
    intake.py       what a node does with the bundles that it took in
    saved.py        the rule's state as bytes
    metadata.py     what a block says of the parts of bundles in it

No I/O, no clock. docs/multichain.md states the rules.
"""
