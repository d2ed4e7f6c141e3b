"""Spans of a dual write, and the trace that its records carry to their readers."""

import asyncio

import pytest
from confluent_kafka import Consumer, TopicPartition
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dualwrite import TwoPhaseProducer, tracing
from dualwrite.pytest_plugin import read_topic


@pytest.fixture
def provider(monkeypatch):
    """A provider for this test; the real one can be set only once per process."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield provider
    provider.shutdown()


@pytest.fixture
def exporter(provider):
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def headers_of(world):
    consumer = Consumer(
        {"bootstrap.servers": world.bootstrap, "group.id": "g", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(world.topic, 0, 0)])
    message = consumer.poll(20)
    consumer.close()
    assert message.error() is None
    return dict(message.headers() or [])


def named(exporter):
    return {span.name: span for span in exporter.get_finished_spans()}


def test_dual_write_is_one_trace_down_to_its_records(sqlite_world, exporter):
    with sqlite_world.writer() as writer:
        with trace.get_tracer("app").start_as_current_span("request") as request:
            with writer.transaction() as tx:
                sqlite_world.order(tx, 1)

    spans = named(exporter)
    whole = spans["dual write"]
    assert whole.parent.span_id == request.get_span_context().span_id
    assert whole.attributes["dualwrite.outcome"] == "committed"
    assert whole.attributes["dualwrite.txn"] == tx.outcome.txn
    for part in ("prepare", "decide", "complete"):
        assert spans[part].parent.span_id == whole.context.span_id
    assert spans["prepare_transaction"].parent.span_id == spans["prepare"].context.span_id
    assert spans["prepare"].attributes["dualwrite.records"] == 1
    expected = f"00-{whole.context.trace_id:032x}-{whole.context.span_id:016x}-"
    assert headers_of(sqlite_world)["traceparent"].startswith(expected.encode())


def test_awaitable_writer_is_traced_too(sqlite_world, exporter):
    async def write():
        async with sqlite_world.async_writer() as writer:
            async with writer.transaction() as tx:
                await sqlite_world.async_order(tx, 1)

    asyncio.run(write())

    spans = named(exporter)
    assert spans["complete"].parent.span_id == spans["dual write"].context.span_id
    assert "traceparent" in headers_of(sqlite_world)


def test_failure_is_shown(sqlite_world, exporter):
    with sqlite_world.writer() as writer:
        with pytest.raises(ZeroDivisionError):
            with writer.transaction() as tx:
                sqlite_world.order(tx, 1)
                raise ZeroDivisionError

    whole = named(exporter)["dual write"]
    assert whole.attributes["dualwrite.outcome"] == "rolled_back"
    assert "complete" not in named(exporter)


def test_header_that_was_given_is_kept(sqlite_world, exporter):
    with sqlite_world.writer() as writer:
        with writer.transaction() as tx:
            tx.produce(sqlite_world.topic, b"x", headers={"traceparent": b"mine", "a": b"b"})

    assert headers_of(sqlite_world) == {"traceparent": b"mine", "a": b"b"}


def test_bare_producer_carries_the_caller_s_context(sqlite_world, exporter):
    producer = TwoPhaseProducer(
        {"bootstrap.servers": sqlite_world.bootstrap, "transactional.id": sqlite_world.app}
    )
    producer.init_transactions()
    with trace.get_tracer("app").start_as_current_span("request") as request:
        producer.begin_transaction()
        producer.produce(sqlite_world.topic, b"x")
        producer.commit_transaction()
    producer.close()

    trace_id = f"{request.get_span_context().trace_id:032x}".encode()
    assert trace_id in headers_of(sqlite_world)["traceparent"]
    assert "commit_transaction" in named(exporter)


class Broken(SpanProcessor):
    """Whoever collects spans is in trouble of his own."""

    def on_end(self, span):
        raise RuntimeError("the collector is broken")


def test_broken_collector_decides_nothing(sqlite_world, provider):
    provider.add_span_processor(Broken())
    with sqlite_world.writer() as writer:
        with writer.transaction() as tx:
            sqlite_world.order(tx, 1)

    assert tx.outcome.kafka == "committed"
    sqlite_world.assert_agree([1])


def test_nothing_is_added_where_nobody_traces(sqlite_world):
    assert not tracing.is_on()
    with sqlite_world.writer() as writer:
        with writer.transaction() as tx:
            sqlite_world.order(tx, 1)

    assert headers_of(sqlite_world) == {}


def test_each_record_carries_the_trace_that_it_was_produced_in(sqlite_world, exporter):
    """However quickly one follows the other."""
    config = {
        "bootstrap.servers": sqlite_world.bootstrap,
        "transactional.id": "traced",
        "transaction.two.phase.commit.enable": True,
    }
    with TwoPhaseProducer(config) as producer:
        producer.init_transactions(timeout=20)
        producer.begin_transaction()
        for _ in range(20):
            producer.produce(sqlite_world.topic, b"outside", partition=0)
            with trace.get_tracer("app").start_as_current_span("request"):
                producer.produce(sqlite_world.topic, b"inside", partition=0)
        producer.commit_transaction()

    messages = read_topic(sqlite_world.topic, sqlite_world.bootstrap)
    assert len(messages) == 40
    for message in messages:
        carries = "traceparent" in dict(message.headers() or [])
        assert carries == (message.value() == b"inside")
