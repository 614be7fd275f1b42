"""Small ledgers and blocks for the tests of the ledger and of what reads it."""

from ordering_osn.chain.blocks import new_block, seal
from ordering_osn.ledger import segments
from ordering_osn.ledger.ledger import Ledger

SMALL = 300  # bytes; a segment of a few blocks


class Unsigned:
    """A `Signer` for blocks whose signature nobody looks at."""

    creator = b"creator"

    def sign(self, _message):
        return b"signature"

    def nonce(self):
        return b"nonce"


def block(number, *, size=60):
    """Bytes that tell their number; no real block."""
    return (b"%d " % number * size)[:size]


def real_block(number, *, config_every=5):
    """A block of a chain that has a config block every few blocks."""
    made = new_block(number, b"", [b"%04d" % number])
    last_config = number - number % config_every
    seal(made, last_config=last_config, consenter=b"", signer=Unsigned())
    return made.SerializeToString()


def open_small(folder, **options):
    return Ledger.open(folder, segment_bytes_max=SMALL, **options)


def fill(folder, count, *, make=block, **options):
    with open_small(folder, **options) as ledger:
        for number in range(ledger.height, count):
            ledger.append(number, make(number))


def contents(ledger):
    return [ledger.read(number) for number in range(ledger.base, ledger.height)]


def reopened(folder, **options):
    with open_small(folder, **options) as ledger:
        return contents(ledger)


def newest(folder):
    return segments.listed(folder)[-1]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}
