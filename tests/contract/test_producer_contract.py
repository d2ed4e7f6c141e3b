"""`TwoPhaseProducer`, `AsyncTwoPhaseProducer`, `TransactionAdmin`, `GroupMetadata` from outside."""

import asyncio
import inspect
import pickle
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition

import dualwrite
from dualwrite import (
    AsyncTwoPhaseProducer,
    ConfigurationError,
    GroupMetadata,
    HeuristicAbort,
    InvalidTxnState,
    PreparedTxnState,
    TransactionAdmin,
    TwoPhaseProducer,
)
from dualwrite.admin import AsyncTransactionAdmin
from dualwrite.failures import KafkaTimeout, ProducerFenced
from dualwrite.pytest_plugin import read_topic


def config(servers, name, **more):
    return {
        "bootstrap.servers": servers,
        "transactional.id": name,
        "transaction.two.phase.commit.enable": True,
        **more,
    }


@pytest.fixture
def name():
    return f"orders-{uuid.uuid4().hex}"


@pytest.fixture
def producer(servers, name):
    with TwoPhaseProducer(config(servers, name)) as made:
        yield made


def prepared(producer, name):
    producer.begin_transaction()
    producer.produce(name, value=b"v")
    return producer.prepare_transaction()


def values(topic, servers):
    return [message.value() for message in read_topic(topic, servers)]


def defaults(function):
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


@pytest.mark.parametrize("kind", [TwoPhaseProducer, AsyncTwoPhaseProducer])
def test_signatures(kind):
    """Names, order and defaults of the arguments are fixed, the same for both producers."""
    assert defaults(kind.init_transactions) == [("keep_prepared_txn", False), ("timeout", None)]
    assert defaults(kind.produce)[1:] == [
        ("value", None),
        ("key", None),
        ("partition", -1),
        ("on_delivery", None),
        ("timestamp", 0),
        ("headers", None),
    ]
    wanted = ["offsets", "group_metadata"]
    assert [n for n, _ in defaults(kind.send_offsets_to_transaction)][:2] == wanted
    for method in ("begin", "prepare", "complete", "commit", "abort"):
        assert callable(getattr(kind, f"{method}_transaction"))
    for method in ("flush", "poll", "close"):
        assert callable(getattr(kind, method))


def test_asynchronous_calls_are_awaitable():
    """The asynchronous producer has the same names, and every one of them can be awaited."""
    for name, function in inspect.getmembers(AsyncTwoPhaseProducer, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.iscoroutinefunction(function), name


def test_state_as_text():
    """A state reads "<producer id>:<epoch>", and no state is the empty text."""
    assert str(PreparedTxnState(7, 42)) == "7:42"
    assert str(PreparedTxnState()) == ""
    for read in (PreparedTxnState, PreparedTxnState.parse):
        assert read("7:42") == PreparedTxnState(7, 42)
        assert read("") == PreparedTxnState()
        with pytest.raises(ValueError):
            read("7")


def test_state_as_a_value():
    """States can be compared, hashed and pickled, and one that names nothing is false."""
    state = PreparedTxnState(7, 42)
    assert {state: 1}[PreparedTxnState("7:42")] == 1
    assert pickle.loads(pickle.dumps(state)) == state
    assert state
    assert PreparedTxnState("0:0")
    assert not PreparedTxnState()


@pytest.mark.parametrize("as_given", [str, lambda state: state], ids=["text", "object"])
def test_complete_commits_what_is_prepared(producer, servers, name, as_given):
    """Completing with the very state that is prepared commits it."""
    producer.init_transactions()
    state = prepared(producer, name)
    assert producer.prepared_txn_state == state
    assert producer.complete_transaction(as_given(state)) == "committed"
    assert producer.prepared_txn_state == PreparedTxnState()
    assert values(name, servers) == [b"v"]


def test_complete_aborts_for_any_other_state(producer, servers, name):
    """Completing with another state, the empty one included, aborts."""
    producer.init_transactions()
    prepared(producer, name)
    assert producer.complete_transaction(PreparedTxnState()) == "aborted"
    prepared(producer, name)
    assert producer.complete_transaction("7:1") == "aborted"
    assert values(name, servers) == []


def test_nothing_ongoing_completes_as_none(producer):
    """Right after an init that found nothing, completing does nothing."""
    producer.init_transactions(keep_prepared_txn=True)
    assert producer.complete_transaction("7:1") == "none"


def test_prepared_survives_the_producer(servers, name):
    """With keep_prepared_txn the next producer finds what is prepared, and can complete it."""
    with TwoPhaseProducer(config(servers, name)) as first:
        first.init_transactions()
        state = prepared(first, name)
    with TwoPhaseProducer(config(servers, name)) as second:
        second.init_transactions(keep_prepared_txn=True)
        assert second.prepared_txn_state == state
        with pytest.raises(InvalidTxnState):
            second.begin_transaction()
        assert second.complete_transaction(str(state)) == "committed"
        second.begin_transaction()
        second.abort_transaction()


def test_prepared_state_allows_only_the_end(producer, name):
    """While prepared every call but commit, abort, complete and close is refused."""
    producer.init_transactions()
    prepared(producer, name)
    for call in (
        producer.begin_transaction,
        producer.prepare_transaction,
        producer.init_transactions,
        producer.flush,
        producer.poll,
        lambda: producer.produce(name, value=b"w"),
        lambda: producer.send_offsets_to_transaction({(name, 0): 1}, GroupMetadata("g")),
    ):
        with pytest.raises(InvalidTxnState):
            call()
    producer.commit_transaction()


def test_complete_needs_prepare(producer, name):
    """In an open transaction that is not prepared, completing is refused."""
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, value=b"v")
    with pytest.raises(InvalidTxnState):
        producer.complete_transaction("7:1")
    producer.abort_transaction()


def test_preparing_nothing_ends_the_transaction(producer):
    """Preparing an empty transaction gives the empty state and ends it."""
    producer.init_transactions()
    producer.begin_transaction()
    assert str(producer.prepare_transaction()) == ""
    producer.begin_transaction()
    producer.abort_transaction()


def test_forced_abort_is_remembered(servers, name):
    """Completing a pair that somebody aborted by force is a heuristic abort, also after a new init."""
    with TwoPhaseProducer(config(servers, name)) as first:
        first.init_transactions()
        state = prepared(first, name)
        with TransactionAdmin({"bootstrap.servers": servers}) as admin:
            admin.force_terminate_transaction(name)
            last = admin.describe_transactions([name])[name].last_finished
        assert (last.pair, last.outcome, last.cause) == (state, "abort", "forced")
    with TwoPhaseProducer(config(servers, name)) as second:
        second.init_transactions(keep_prepared_txn=True)
        with pytest.raises(HeuristicAbort):
            second.complete_transaction(state)


def test_unknown_key_is_refused(servers):
    """Configuration keys that nobody knows are an error."""
    with pytest.raises(ConfigurationError, match=r"transactional\.id"):
        TwoPhaseProducer({"bootstrap.servers": servers, "transactonal.id": "x"})


def test_timeout_and_two_phase_commit_exclude_each_other(servers):
    """A prepared transaction has no timeout, so setting one is an error."""
    with pytest.raises(ConfigurationError):
        TwoPhaseProducer(config(servers, "x", **{"transaction.timeout.ms": 1000}))


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressions(servers, name, compression):
    """Five compressions, each readable by librdkafka."""
    with TwoPhaseProducer(config(servers, name, **{"compression.type": compression})) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(name, b"v" * 500, b"k", headers=[("h", b"1")])
        producer.commit_transaction()
    (message,) = read_topic(name, servers)
    assert (message.key(), message.headers()) == (b"k", [("h", b"1")])


@pytest.mark.parametrize("as_dict", [False, True])
def test_offsets_of_a_consumer(producer, servers, name, as_dict):
    """Offsets come as TopicPartitions or as a dict, the group as librdkafka's bytes or our class."""
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, value=b"v")
    producer.commit_transaction()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name})
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        group = consumer.consumer_group_metadata()
        producer.begin_transaction()
        if as_dict:
            producer.send_offsets_to_transaction({(name, 0): 1}, GroupMetadata(name))
        else:
            producer.send_offsets_to_transaction([TopicPartition(name, 0, 1)], group)
        producer.complete_transaction(producer.prepare_transaction())
        assert consumer.committed([TopicPartition(name, 0)], timeout=20)[0].offset == 1
    finally:
        consumer.close()


@pytest.mark.parametrize("read", [GroupMetadata, GroupMetadata.parse, GroupMetadata.of])
def test_group_metadata_of_a_consumer(servers, name, read):
    """librdkafka's bytes are read; bytes of a form that nobody knows are refused, never guessed."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": name})
    given = consumer.consumer_group_metadata()
    consumer.close()
    assert read(given) == GroupMetadata(name)
    assert read(given).to_bytes() == given
    for unknown in (b"", b"CGMDv9:....", given[:-1], given + b"x"):
        with pytest.raises(ValueError):
            read(unknown)


@pytest.mark.parametrize("wrong", ["text", [1], {"t": {0: 1}}, {("t", 0): "1"}], ids=str)
def test_wrong_offsets_are_refused_at_once(producer, name, wrong):
    """What is neither a list of TopicPartitions nor a dict to offsets fails, and costs nothing."""
    producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises(TypeError):
        producer.send_offsets_to_transaction(wrong, GroupMetadata(name))
    assert not producer.prepare_transaction()


def test_administrator(producer, servers, name):
    """The administrator lists with three filters, describes ids and a partition's producers."""
    producer.init_transactions()
    state = prepared(producer, name)
    assert defaults(TransactionAdmin.list_transactions) == [
        ("states", None),
        ("min_duration_ms", None),
        ("id_pattern", None),
    ]
    assert [given for given, _ in defaults(TransactionAdmin.describe_transactions)] == ["ids"]
    assert [given for given, _ in defaults(TransactionAdmin.force_terminate_transaction)] == ["id"]
    with TransactionAdmin({"bootstrap.servers": servers}) as admin:
        listed = admin.list_transactions(states=["Ongoing"], id_pattern=name)
        assert [entry.transactional_id for entry in listed] == [name]
        assert admin.list_transactions(id_pattern=name, min_duration_ms=3_600_000) == []
        assert admin.describe_transactions([name])[name].state == "Ongoing"
        found = admin.describe_producers(name, 0)
        assert [p.producer_id for p in found] == [state.producer_id]
        described = admin.describe_transactions([name])[name]
        assert (described.producer_id, described.epoch) == (state.producer_id, state.epoch)
    producer.abort_transaction()


def test_misuse_of_the_administrator(servers):
    """A wrong filter never passes for "there is none", and a closed administrator says so at once."""
    with TransactionAdmin({"bootstrap.servers": servers}) as admin:
        with pytest.raises(TypeError):
            admin.list_transactions("Ongoing")
        with pytest.raises(ConfigurationError, match="ongoing"):
            admin.list_transactions(["ongoing"])
    admin.close()
    with pytest.raises(InvalidTxnState, match="closed"):
        admin.list_transactions()
    asynchronous = AsyncTransactionAdmin({"bootstrap.servers": servers})

    async def ask_after_closing():
        await asynchronous.close()
        await asynchronous.list_transactions()

    with pytest.raises(InvalidTxnState, match="closed"):
        asyncio.run(ask_after_closing())


def test_asynchronous_producer(servers, name):
    """The same conversation, awaited."""

    async def conversation():
        async with AsyncTwoPhaseProducer(config(servers, name)) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.produce(name, value=b"v")
            return await producer.complete_transaction(await producer.prepare_transaction())

    assert asyncio.run(conversation()) == "committed"
    assert values(name, servers) == [b"v"]


@pytest.mark.parametrize("topic", [None, 5, b"t"])
def test_topic_must_be_a_text(producer, servers, topic):
    """A topic that is no text is told as such, by both producers; the transaction goes on."""
    producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises(TypeError, match="topic"):
        producer.produce(topic, value=b"v")
    producer.commit_transaction()

    async def produce():
        async with AsyncTwoPhaseProducer(config(servers, "wrong-topic")) as other:
            await other.init_transactions()
            await other.begin_transaction()
            await other.produce(topic, value=b"v")

    with pytest.raises(TypeError, match="topic"):
        asyncio.run(produce())


@pytest.mark.parametrize("is_async", [False, True])
def test_server_that_refuses_is_named(is_async):
    """Whoever mistypes an address reads it in the error."""
    wrong = config("127.0.0.1:1", "x", **{"max.block.ms": 300})

    async def init():
        async with AsyncTwoPhaseProducer(wrong) as producer:
            await producer.init_transactions()

    with pytest.raises(dualwrite.KafkaError, match=r"127\.0\.0\.1:1"):
        if is_async:
            asyncio.run(init())
        else:
            TwoPhaseProducer(wrong).init_transactions()


@pytest.mark.parametrize(
    "error",
    [
        dualwrite.KafkaError(3, "a call"),
        ProducerFenced(90, "a call"),
        KafkaTimeout("a call", OSError("refused")),
        HeuristicAbort("a call"),
    ],
    ids=str,
)
def test_errors_reach_other_processes(error):
    """An error of a worker arrives in its parent as it was."""
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived)) == (type(error), str(error))
    assert getattr(arrived, "code", None) == getattr(error, "code", None)


def test_errors_by_what_the_caller_must_do():
    """Everything derives from DualWriteError; being fenced is a reason to run the block again."""
    for error in (
        "RetryableError",
        "OutcomeUnknown",
        "HeuristicAbort",
        "InvalidTxnState",
        "ConfigurationError",
    ):
        assert issubclass(getattr(dualwrite, error), dualwrite.DualWriteError)
    assert issubclass(dualwrite.Fenced, dualwrite.RetryableError)
