"""Spans of messages, as OpenTelemetry's SDK exports them; in the campaign also on a broker."""

import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler

from collectors.testing.running import RunningTopic
from multicast.errors import AppendRefused
from multicast.testing import system
from multicast.tracing.context import PROPAGATOR, context_of, injected
from tests.helpers.system import PATIENCE_S

INTERESTS = {"consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}}, "destinations": [{"P1", "P2"}]}


TOO_LARGE = 101 * 1024 * 1024  # above what the clients allow


class Switched(Sampler):
    """A sampler that the test turns on and off: the process has one provider for ever."""

    on = True

    def should_sample(self, *arguments, **options):
        sampler = ParentBased(ALWAYS_ON if self.on else ALWAYS_OFF)
        return sampler.should_sample(*arguments, **options)

    def get_description(self):
        return "switched"


SAMPLER = Switched()
EXPORTER = InMemorySpanExporter()


ON_A_BROKER = [pytest.mark.kafka, pytest.mark.campaign, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["memory", pytest.param("broker", marks=ON_A_BROKER)])
def topic(request):
    provider = TracerProvider(sampler=SAMPLER)
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)
    if request.param == "memory":
        made = system(INTERESTS)
    else:
        made = RunningTopic(request.getfixturevalue("kafka_cluster").bootstrap, INTERESTS)
    with made as running:
        yield running


@pytest.fixture
def spans():
    """The spans that ended in the test, by the first word of their names."""
    SAMPLER.on = True
    EXPORTER.clear()

    def ended(word):
        named = EXPORTER.get_finished_spans()
        return [span for span in named if span.name.split()[0] == word]

    return ended


def received(topic, name, count):
    """Deliver so many messages from the end of the last test on."""
    messages = []
    with topic.consumer(name, group=f"{name}-traced", tracing=True) as consumer:
        for message in consumer:
            messages.append(message)
            if len(messages) == count:
                break
        consumer.commit()
    return messages


def one_of(spans):
    (only,) = spans
    return only


def links(span):
    return [link.context.span_id for link in span.links]


def test_one_trace_leads_from_the_caller_over_the_order_to_each_delivery(topic, spans):
    with (
        topic.producer(tracing=True) as producer,
        trace.get_tracer("test").start_as_current_span("caller") as caller,
    ):
        message = producer.multicast(b"x", to={"P1", "P2"}).ordered(PATIENCE_S)
    for name in ("C1", "C2"):
        (delivered,) = received(topic, name, 1)
        assert delivered.message_id == message
    sent = one_of(spans("multicast"))
    assert sent.parent.span_id == caller.get_span_context().span_id
    assert sent.attributes["messaging.kafka.offset"] == message.offset
    assert sent.attributes["amcast.to"] == ("P1", "P2")
    orders, deliveries = spans("order"), spans("deliver")
    assert [span.attributes["amcast.consumer"] for span in deliveries] == ["C1", "C2"]
    for order, delivery in zip(orders, deliveries, strict=True):
        assert order.context.trace_id == delivery.context.trace_id == sent.context.trace_id
        assert order.parent.span_id == delivery.parent.span_id == sent.context.span_id
        assert links(order) == [sent.context.span_id]
        assert links(delivery) == [order.context.span_id]
        assert order.start_time <= order.end_time == delivery.start_time <= delivery.end_time
        assert order.attributes["amcast.order.stream"] in {c.name for c in topic.plan.collectors}
        assert order.attributes["amcast.order.record"] >= 0


def test_what_is_not_sampled_has_no_header_and_no_span_anywhere(topic, spans):
    SAMPLER.on = False
    with topic.producer(tracing=True) as producer:
        producer.multicast(b"x", to={"P1", "P2"}).accepted(PATIENCE_S)
        producer.multicast_all([b"x", b"y"], to={"P1", "P2"}).accepted(PATIENCE_S)
    for name in ("C1", "C2"):
        assert [list(each.headers) for each in received(topic, name, 3)] == [[], [], []]
    assert [*spans("multicast"), *spans("order"), *spans("deliver")] == []


def test_a_share_of_the_messages_is_traced_and_all_of_a_sampled_caller(topic, spans):
    with topic.producer(tracing=1e-9) as producer:
        for _ in range(5):
            producer.multicast(b"x", to={"P1", "P2"}).accepted(PATIENCE_S)
        assert spans("multicast") == []
        with trace.get_tracer("test").start_as_current_span("caller"):
            producer.multicast(b"x", to={"P1", "P2"}).accepted(PATIENCE_S)
            headers = {"other": b"1"}
            producer.multicast(b"x", to={"P1", "P2"}, headers=headers).accepted(PATIENCE_S)
    assert len(spans("multicast")) == 2
    for name in ("C1", "C2"):
        received(topic, name, 7)
    assert len(spans("deliver")) == 4


@pytest.mark.parametrize(("share", "flags"), [(True, b"01"), (1e-9, b"00")])
def test_a_traceparent_of_the_application_stays_and_decides(topic, spans, share, flags):
    own = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" + flags
    headers = [("traceparent", own), ("other", b"1")]
    with (
        topic.producer(tracing=share) as producer,
        trace.get_tracer("test").start_as_current_span("caller"),
    ):
        producer.multicast(b"x", to={"P1", "P2"}, headers=headers).accepted(PATIENCE_S)
    for name in ("C1", "C2"):
        assert list(one_of(received(topic, name, 1)).headers) == headers
    if flags == b"01":
        parents = [one_of(spans("multicast")).parent, spans("deliver")[0].parent]
        assert [parent.span_id for parent in parents] == [0xB7AD6B7169203331] * 2
    else:
        assert [*spans("multicast"), *spans("order"), *spans("deliver")] == []


def test_the_messages_of_one_call_share_a_span_and_each_has_its_delivery(topic, spans):
    with topic.producer(tracing=True) as producer:
        producer.multicast_all([b"x"] * 5, to={"P1", "P2"}).accepted(PATIENCE_S)
    for name in ("C1", "C2"):
        received(topic, name, 5)
    sent = spans("multicast")
    assert sum(span.attributes["messaging.batch.message_count"] for span in sent) == 5
    deliveries = spans("deliver")
    assert len(deliveries) == 10
    assert {span.parent.span_id for span in deliveries} == {span.context.span_id for span in sent}


def test_each_message_of_a_backlog_has_the_span_of_its_own_order_record(topic, spans):
    # Init: of some sixty messages no two came in one order record; a few more share one.
    with topic.producer(tracing=True) as producer:
        for _ in range(60):
            producer.multicast(b"x", to={"P1", "P2"}).ordered(PATIENCE_S)
        producer.multicast_all([b"x"] * 40, to={"P1", "P2"}).ordered(PATIENCE_S)

    # Test: read a few at a time.
    delivered = {}
    with topic.consumer("C1", group="C1-traced", tracing=True) as consumer:
        while len(delivered) < 100:
            for batch in consumer.poll(messages_max=7):
                delivered |= {record.offset: batch.record for record in batch.records}
        consumer.commit()

    # Check.
    offsets = {
        span.context.span_id: span.attributes["messaging.kafka.offset"]
        for span in spans("multicast")
        if "messaging.kafka.offset" in span.attributes
    }
    orders = spans("order")
    assert len(orders) == 100
    single = [span for span in orders if span.parent.span_id in offsets]
    assert len(single) == 60
    for span in single:
        offset = offsets[span.parent.span_id]
        assert span.attributes["amcast.order.record"] == delivered[offset]
    assert len(set(delivered.values())) > 60
    received(topic, "C2", 100)


def test_a_refused_message_is_an_error_of_its_span(topic, spans):
    with topic.producer(tracing=True) as producer:
        receipt = producer.multicast(bytes(TOO_LARGE), to={"P3"})
        with pytest.raises(AppendRefused):
            receipt.accepted(PATIENCE_S)
    sent = one_of(spans("multicast"))
    assert sent.status.status_code is trace.StatusCode.ERROR
    assert sent.attributes["error.type"] == "AppendRefused"


def test_a_single_log_is_its_own_order_and_has_no_span_of_it(topic, spans):
    with topic.producer(tracing=True) as producer:
        producer.multicast(b"x", to={"P3"}).accepted(PATIENCE_S)
    options = {"interest": {"P3"}, "group": "alone", "tracing": True}
    with topic.consumer(None, **options) as consumer:
        next(iter(consumer))
    received(topic, "C2", 1)
    single, _ = spans("deliver")
    assert links(single) == [one_of(spans("multicast")).context.span_id]
    assert len(spans("order")) == 1  # C2's


def test_a_span_of_the_application_can_continue_the_trace_of_a_message(topic, spans):
    with topic.producer(tracing=True) as producer:
        producer.multicast(b"x", to={"P1", "P2"}).accepted(PATIENCE_S)
    for name in ("C1", "C2"):
        (message,) = received(topic, name, 1)
    with trace.get_tracer("test").start_as_current_span("work", context_of(message)) as work:
        pass
    assert work.parent.span_id == one_of(spans("multicast")).context.span_id


@pytest.mark.parametrize("state", [[], [("vendor", "1"), ("other", "a=b")]])
@pytest.mark.parametrize("flags", [0, 1, 3])
def test_the_headers_of_a_context_are_those_of_opentelemetrys_propagator(state, flags):
    context = trace.SpanContext(
        0x0AF7651916CD43DD8448EB211C80319C,
        0x00AD6B7169203331,
        is_remote=False,
        trace_flags=trace.TraceFlags(flags),
        trace_state=trace.TraceState(state),
    )
    carrier = {}
    PROPAGATOR.inject(carrier, trace.set_span_in_context(trace.NonRecordingSpan(context)))
    assert injected(context) == [(name, text.encode()) for name, text in carrier.items()]


def test_without_tracing_opentelemetry_is_not_even_imported():
    program = (
        "import sys; import multicast.aio; from multicast import Consumer, Producer; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_the_extra_tracing_is_refused_with_the_command_that_helps():
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from multicast import Producer\n"
        "Producer('127.0.0.1:1', topic='A', tracing=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "pip install 'amcast[tracing]'" in done.stderr
