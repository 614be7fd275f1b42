"""The judge of a killed query's sink finds what it exists for; its checkpoint is counted right."""

import pytest

from bench.spark.campaign import judge
from bench.spark.streamed import StreamedQuery
from multicast.errors import AmcastError

DELIVERED = [f"P1:{offset}" for offset in range(5)]


def test_a_sink_that_holds_each_message_once_in_order_passes():
    judge(list(DELIVERED), DELIVERED)


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (DELIVERED[:2] + DELIVERED[3:], r"lost \['P1:2'\]"),
        (DELIVERED[:-1], r"lost \['P1:4'\].* from row 4 on"),
        ([*DELIVERED[:2], "P1:1", *DELIVERED[2:]], r"doubled \['P1:1'\].* from row 2 on"),
        (["P1:1", "P1:0", *DELIVERED[2:]], r"lost \[\] …, doubled \[\] .* from row 0 on"),
        ([*DELIVERED, "P2:0"], r"foreign \['P2:0'\].* from row 5 on"),
    ],
)
def test_a_lost_doubled_moved_or_foreign_row_is_told(held, sentence):
    with pytest.raises(AmcastError, match=sentence):
        judge(held, DELIVERED)


def test_batches_are_counted_by_the_newest_because_spark_removes_old_ones(tmp_path):
    query = StreamedQuery("127.0.0.1:1", "A", tmp_path, "sqlite", consumer="C1")
    assert (query.begun(), query.committed()) == (0, 0)
    for log, names in (("offsets", ["7", "8", ".9.crc", ".9.tmp"]), ("commits", ["7"])):
        folder = tmp_path / "checkpoint" / log
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    assert (query.begun(), query.committed()) == (9, 8)
