"""What must hold of all consumers together, and of checkpoints. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence

from bench.tickets.epochs import TicketSpan
from bench.tickets.processes import TicketReaderProcess
from multicast.tickets.encoding import CheckpointRecord
from multicast.tickets.rule import TicketState, TicketStream

# Two intervals of a stream at rest hold some relays, twice each, and checkpoints.
READ_AT_REST_MAX = 60


def disagreement(
    consumers: Sequence[TicketReaderProcess], removed: Container[tuple[int, int]] = ()
) -> str:
    """Say where consumers disagree on the order of two messages, or "".

    What retention has removed, one of two consumers may not have delivered. The deliveries of all
    consumers together must have no cycle either.
    """
    for number, consumer in enumerate(consumers):
        for other in consumers[:number]:
            common = {*consumer.interest} & {*other.interest}
            one, two = (
                [entry for entry in seen.delivered if entry[0] in common]
                for seen in (consumer, other)
            )
            if one != two and removed:
                both = {*one} & {*two}
                one, two = (
                    [entry for entry in seen if entry in both or entry not in removed]
                    for seen in (one, two)
                )
            if one != two:
                return f"order: two consumers disagree on logs {sorted(common)}: {one} {two}"
    return "order: the deliveries of all consumers form a cycle" if _cyclic(consumers) else ""


def _cyclic(consumers: Sequence[TicketReaderProcess]) -> bool:
    after: dict[tuple[int, int], set[tuple[int, int]]] = {}
    before: Counter[tuple[int, int]] = Counter()
    for consumer in consumers:
        for entry in consumer.delivered:
            after.setdefault(entry, set())
        for first, second in zip(consumer.delivered, consumer.delivered[1:], strict=False):
            if second not in after[first]:
                after[first].add(second)
                before[second] += 1
    free = [entry for entry in after if not before[entry]]
    for entry in free:
        for following in sorted(after[entry]):
            before[following] -= 1
            if not before[following]:
                free.append(following)
    return len(free) < len(after)


def wrong_checkpoint(spans: Iterable[TicketSpan], live: Iterable[TicketSpan]) -> str:
    """Say which checkpoint does not lead its readers to where all others are, or "".

    Who begins at one must be where a reader of everything was there; what both read from there on
    is the same. The oldest one is read to the end all the same, in case a reader has a state that
    this comparison does not know. Of streams that are live, and at rest for a while, a new reader
    must read little.
    """
    for span in live:
        length = len(span.records) - span.mark(len(span.records))
        if length > READ_AT_REST_MAX:
            return f"checkpoints: a new reader of stream {span.node} reads {length} records"
    for span in spans:
        begun = {offset: _opened(span, offset) for offset in span.pointers}
        by_mark = sorted(begun.items(), key=lambda item: item[1].offset_next)
        whole = TicketStream(span.shape)
        for offset, stream in by_mark:
            _read_on(whole, span, stream.offset_next)
            if _position(whole) != _position(stream):
                return f"checkpoints: one at {offset} of stream {span.node} is wrong"
        _read_on(whole, span, len(span.records))
        for offset, stream in by_mark[:1]:
            _read_on(stream, span, len(span.records))
            if _position(whole) != _position(stream):
                return f"checkpoints: one at {offset} of stream {span.node} leads elsewhere"
    return ""


def _opened(span: TicketSpan, offset: int) -> TicketStream:
    return TicketStream(span.shape, span.checkpoint_at(offset))


def _read_on(stream: TicketStream, span: TicketSpan, end: int) -> None:
    for offset in range(stream.offset_next, end):
        stream.read(offset, span.records[offset])


def _position(stream: TicketStream) -> tuple[TicketState, int, CheckpointRecord]:
    return stream.state, stream.mark, stream.marked
