"""What must hold of all consumers together, and of checkpoints. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence

from bench.tickets.epochs import TicketSpan
from bench.tickets.processes import TicketReaderProcess
from multicast.tickets.rule import TicketStream

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

    Of streams that are live, and at rest for a while, a new reader must read little.
    """
    for span in live:
        length = len(span.records) - span.mark(len(span.records))
        if length > READ_AT_REST_MAX:
            return f"checkpoints: a new reader of stream {span.node} reads {length} records"
    for span in spans:
        state = span.whole()[0].state
        for offset in span.pointers:
            stream = TicketStream(span.shape, span.checkpoint_at(offset))
            for place in range(stream.offset_next, len(span.records)):
                stream.read(place, span.records[place])
            if stream.state != state:
                return f"checkpoints: one at {offset} of stream {span.node} leads elsewhere"
    return ""
