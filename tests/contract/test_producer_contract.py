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


@pytest.mark.parametrize("wrong", [(None,), (1.5, 2), (b"7:42",), (7, "42"), ("7:42", 3)], ids=str)
def test_what_is_no_state(wrong):
    """A state is two whole numbers or one text; nothing else passes for one."""
    with pytest.raises(TypeError):
        PreparedTxnState(*wrong)


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
    with pytest.raises(ConfigurationError, match="5"):
        TwoPhaseProducer(config(servers, "x") | {5: "y"})


@pytest.mark.parametrize("kind", [TwoPhaseProducer, AsyncTwoPhaseProducer, TransactionAdmin])
@pytest.mark.parametrize("wrong", [None, "localhost:9092", 5, [("bootstrap.servers", "h:1")]])
def test_configuration_is_a_dict(kind, wrong):
    """Whatever else is given is told as such."""
    with pytest.raises(ConfigurationError, match="is a dict"):
        kind(wrong)


def test_file_that_cannot_be_used_is_named(servers, tmp_path):
    """Who mistypes the path of a certificate reads it in the error."""
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "ca.pem")}
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location .*/ca\.pem"):
        TwoPhaseProducer(config(servers, "x", **tls))


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


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        None,
        5,
        [1],
        {"t": {0: 1}},
        {("t",): 1},
        {("t", 0): "1"},
        {("t", 0): 2**63},
        {("t", 2**31): 1},
    ],
    ids=str,
)
def test_wrong_offsets_are_refused_at_once(producer, name, wrong):
    """What is neither a list of TopicPartitions nor a dict to offsets fails, and costs nothing."""
    producer.init_transactions()
    producer.begin_transaction()
    with pytest.raises((TypeError, ValueError), match=r"offset|partition|TopicPartition"):
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


WRONG_RECORDS = [
    {"partition": "0"},
    {"partition": None},
    {"partition": -2},
    {"timestamp": "now"},
    {"timestamp": 1.5},
    {"timestamp": -5},
    {"timestamp": 2**70},
    {"headers": "x"},
    {"headers": 5},
    {"headers": [("a",)]},
    {"headers": [(b"a", b"x")]},
    {"on_delivery": 5},
    {"value": 5},
    {"key": 1.5},
]


@pytest.mark.parametrize("wrong", WRONG_RECORDS, ids=str)
def test_wrong_record_is_refused_at_once(producer, servers, name, wrong):
    """What cannot be sent is told by `produce` itself, by name; the transaction goes on without it."""
    (argument,) = wrong

    async def produce():
        async with AsyncTwoPhaseProducer(config(servers, f"{name}-async")) as other:
            await other.init_transactions()
            await other.begin_transaction()
            await other.produce(name, **{"value": b"v", **wrong})

    with pytest.raises((TypeError, ValueError), match=argument.removesuffix("s")):
        asyncio.run(produce())
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, value=b"before")
    with pytest.raises((TypeError, ValueError), match=argument.removesuffix("s")):
        producer.produce(name, **{"value": b"v", **wrong})
    producer.produce(name, value=b"behind")
    assert producer.complete_transaction(producer.prepare_transaction()) == "committed"
    assert values(name, servers) == [b"before", b"behind"]


def test_wrong_row_of_many_leaves_the_others(producer, servers, name):
    """A row that cannot be sent does not spoil the batch that it would have been in."""
    producer.init_transactions()
    producer.begin_transaction()
    for stamp, error in ((1.5, TypeError), (2**70, ValueError), (-(2**70), ValueError)):
        with pytest.raises(error):
            producer.produce_batch(name, [(None, b"1", None, 1000), (None, b"wrong", None, stamp)])
    producer.commit_transaction()
    assert values(name, servers) == [b"1", b"1", b"1"]


@pytest.mark.parametrize("timeout", ["x", float("nan"), [1]], ids=str)
def test_wrong_timeout_is_named(producer, timeout):
    """A timeout that is no number is no endless one."""
    with pytest.raises(TypeError, match="timeout"):
        producer.init_transactions(timeout=timeout)
    producer.init_transactions(timeout=20)


@pytest.mark.parametrize("key", ["transactional.id", "client.id"])
@pytest.mark.parametrize("wrong", ["x" * 32_768, "\ud800"], ids=["too long", "no text"])
def test_text_that_no_request_carries(servers, key, wrong):
    """It is refused when the producer is made, instead of waiting for an answer that never comes."""
    with pytest.raises(ConfigurationError, match=key):
        TwoPhaseProducer(config(servers, "x") | {key: wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_id": None},
        {"group_id": 5},
        {"member_id": None},
        {"generation_id": "1"},
        {"generation_id": 2**31},
        {"group_instance_id": 5},
    ],
    ids=str,
)
def test_wrong_group_metadata(wrong):
    """A place in a group is made of texts and a generation."""
    with pytest.raises((TypeError, ValueError)):
        GroupMetadata(**{"group_id": "g", **wrong})


def test_names_that_no_request_carries(producer, servers, name):
    """A group or a topic that is too long for any request is refused at once, in the client."""
    endless = "x" * 32_768
    producer.init_transactions()
    producer.begin_transaction()
    for call in (
        lambda: producer.produce(endless, value=b"v"),
        lambda: producer.send_offsets_to_transaction({(name, 0): 1}, GroupMetadata(endless)),
        lambda: producer.send_offsets_to_transaction({(endless, 0): 1}, GroupMetadata("g")),
    ):
        with pytest.raises(ValueError, match="32767"):
            call()
    producer.abort_transaction()
    with TransactionAdmin({"bootstrap.servers": servers}) as admin:
        with pytest.raises(ValueError, match="32767"):
            admin.describe_transactions([endless])


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.list_transactions(states=[None]),
        lambda admin: admin.list_transactions(states=5),
        lambda admin: admin.list_transactions(min_duration_ms="1"),
        lambda admin: admin.list_transactions(id_pattern=5),
        lambda admin: admin.describe_transactions(None),
        lambda admin: admin.describe_transactions([5]),
        lambda admin: admin.describe_producers(None, 0),
        lambda admin: admin.describe_producers("t", "0"),
        lambda admin: admin.force_terminate_transaction(None),
        lambda admin: admin.force_terminate_transaction(["x"]),
    ],
)
def test_administrator_names_what_is_wrong(servers, ask):
    """Arguments of a wrong type never reach the wire."""
    with TransactionAdmin({"bootstrap.servers": servers}) as admin:
        with pytest.raises(TypeError, match=r"must be|come as"):
            ask(admin)


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
