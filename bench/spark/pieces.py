"""Measures the plan of a table: how many pieces an order has, and what each costs the driver.

    python -m bench.spark.pieces [--messages 1000000]

One broker; one collector orders messages of 100 bytes in two partitions, all of them behind a
backlog. Then, in one process:

    walk      along the order without its payloads (`multicast/tables/order_walk.py`)
    divide    as many made pieces as messages, of 850 offsets each, into slices of 200,000 offsets:
              memory of the pieces, bytes of the slices as tasks get them, CPU to divide
"""

from __future__ import annotations

import pickle
import sys
import time
import tracemalloc
from collections.abc import Sequence
from functools import partial

from bench.harness import figures
from bench.harness.rig import standing
from multicast.subscription import SubscriptionRequest
from multicast.tables.order_walk import Piece, between
from multicast.tables.slices import slices

_MESSAGE_BYTES = 100
_PARTITIONS = 2
_CONSUMER = "C1"  # of `standing`
_PIECE_OFFSETS = 850
_SLICE_OFFSETS = 200_000  # the default of `maxRecordsPerPartition`
_PATIENCE_S = 120.0


def made_pieces(model: Piece, count: int) -> list[Piece]:
    """Make pieces that continue a piece, each with offsets and numbers of its own."""
    return [
        model._replace(
            record=model.record + number,
            first=number * _PIECE_OFFSETS,
            next=(number + 1) * _PIECE_OFFSETS,
            position=model.position + 2 * number * _PIECE_OFFSETS,
        )
        for number in range(count)
    ]


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the figures."""
    parser = figures.parser("pieces", __doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages, made pieces")
    options = parser.parse_args(arguments)
    measured: dict[str, float] = {}
    with standing(_PARTITIONS) as rig:
        figures.progress(f"appending {options.messages} messages")
        rig.fill(options.messages, _MESSAGE_BYTES)
        with rig.collectors() as collectors:
            collectors.wait_healthy()
            request = SubscriptionRequest.of(_CONSUMER, None)
            place = (rig.driver, rig.topic, request)
            walk = partial(between, *place, "earliest", None, timeout_s=_PATIENCE_S)
            walk()  # waits until all is ordered
            began = time.monotonic()
            pieces = walk()
            measured["walk_s"] = round(time.monotonic() - began, 3)
        measured["pieces"] = len(pieces)
        offsets = sum(piece.next - piece.first for piece in pieces)
        measured["offsets_a_piece"] = round(offsets / len(pieces))
        kafka = rig.kafka
    figures.progress(f"dividing {options.messages} pieces")
    tracemalloc.start()
    made = made_pieces(pieces[0], options.messages)
    measured["piece_bytes"] = round(tracemalloc.get_traced_memory()[0] / len(made))
    tracemalloc.stop()
    began = time.process_time()
    parts = slices(made, _SLICE_OFFSETS)
    measured["divide_us_a_piece"] = round(1e6 * (time.process_time() - began) / len(made), 2)
    sent = sum(len(pickle.dumps(part)) for part in parts)
    measured["sent_bytes_a_piece"] = round(sent / len(made))
    document = figures.document("pieces", measured, kafka=kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
