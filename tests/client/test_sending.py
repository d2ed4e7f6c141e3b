"""Batches on their way: order, retries, sequences, limits, callbacks."""

import random

import pytest

from dualwrite.delivery import NO_OFFSET
from dualwrite.errors import KafkaError
from dualwrite.failures import AbortableError, FatalError, ProducerFenced
from dualwrite.flows.states import State
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.produce import ProduceRequest
from dualwrite.wire.records import BatchHeader
from tests.client.scripted import LOSE, REFUSE, ScriptedCluster, put, started


def begun(script, **settings):
    flows = started(script, **settings)
    flows.begin()
    return flows


def record_count(script):
    return sum(header.record_count for log in script.logs.values() for header in log)


def assert_in_order(script):
    """No gap, nothing twice: what the script's leader demands of sequences, seen from the end."""
    for log in script.logs.values():
        expected = 0
        for header in log:
            assert header.base_sequence == expected
            expected += header.record_count


@pytest.mark.parametrize("code", [2, 7, 13, 19, 20, 51, 14, 15, 16])
def test_retried_codes_of_produce(code):
    script = ScriptedCluster()
    flows = begun(script)
    put(script, flows, b"one")
    script.say(ProduceRequest, code, code)
    script.run(flows, flows.commit())

    assert len(script.requests(ProduceRequest)) == 3
    assert record_count(script) == 1


@pytest.mark.parametrize("code", [6, 3, 5, 56, 74, 100])
def test_a_leader_that_moves_is_followed(code):
    script = ScriptedCluster(nodes=2)
    flows = begun(script)
    put(script, flows, b"one")
    script.say(ProduceRequest, lambda request: script.leaders.update({0: 2}) or code)
    script.run(flows, flows.commit())

    asked = [node for node, request, _ in script.seen if type(request) is ProduceRequest]
    assert asked == [1, 2]
    assert record_count(script) == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (31, FatalError),
        (53, FatalError),
        (49, FatalError),
        (90, ProducerFenced),
        (47, AbortableError),
        (48, AbortableError),
        (45, AbortableError),
        (120, AbortableError),
        (10, AbortableError),
        (29, AbortableError),
        (999, AbortableError),
    ],
)
def test_codes_of_produce_that_end_something(code, expected):
    script = ScriptedCluster()
    flows = begun(script)
    put(script, flows, b"one")
    script.say(ProduceRequest, code)

    with pytest.raises(expected) as caught:
        script.run(flows, flows.commit())
    assert caught.value.code == code


def test_an_unsupported_version_of_produce_is_fatal():
    script = ScriptedCluster()
    flows = begun(script)
    put(script, flows, b"one")
    script.say(ProduceRequest, 35)

    with pytest.raises(Exception, match="UNSUPPORTED_VERSION"):
        script.run(flows, flows.commit())
    assert flows.states.state is State.FATAL_ERROR


def test_a_batch_behind_one_that_failed_is_sent_again_after_it():
    script = ScriptedCluster()
    flows = begun(script, batch_num_messages=1)
    put(script, flows, b"one", b"two", b"three")
    script.say(ProduceRequest, 19)
    script.run(flows, flows.commit())

    assert_in_order(script)
    assert record_count(script) == 3


def test_duplicates_are_success():
    script = ScriptedCluster()
    flows = begun(script)
    told = []
    put(script, flows, b"one", callback=lambda error, message: told.append((error, message)))
    script.say(ProduceRequest, 46)
    script.run(flows, flows.commit())
    ((callback, error, message),) = flows.sender.deliveries

    assert error is None
    assert message.value() == b"one"
    assert callable(callback)


def test_never_more_than_five_requests_are_in_flight():
    script = ScriptedCluster()
    flows = begun(script, batch_num_messages=1)
    put(script, flows, *[b"x"] * 40)
    script.run(flows, flows.commit())

    assert script.most_in_flight <= 5
    assert record_count(script) == 40


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_nothing_is_lost_doubled_or_reordered(seed):
    """Codes, lost answers, lost requests, dead brokers and moved leaders, in any order."""
    chance = random.Random(seed)
    script = ScriptedCluster(nodes=3, partitions=3)
    flows = begun(script, batch_num_messages=2)
    faults = [0, 0, 0, 6, 19, 7, LOSE, REFUSE, "move", "down"]

    def trouble(request):
        fault = chance.choice(faults)
        if fault == "move":
            script.leaders[chance.randrange(3)] = chance.randrange(1, 4)
            fault = 0
        if fault == "down":
            script.down = {chance.randrange(1, 4)}
            script.up_at_ms = script.now_ms + chance.randrange(3_000)
            fault = LOSE
        return fault

    script.say(ProduceRequest, *[trouble] * 60)
    for number in range(60):
        put(script, flows, b"%d" % number, partition=number % 3)
    script.say(ProduceRequest, *[trouble] * 10)
    script.run(flows, flows.commit())

    assert_in_order(script)
    assert record_count(script) == 60


def test_records_that_cannot_be_delivered_in_time_fail_the_transaction():
    script = ScriptedCluster()
    flows = begun(script, delivery_timeout_ms=2_000)
    put(script, flows, b"one")
    script.say(ProduceRequest, *[19] * 1000)

    with pytest.raises(AbortableError, match=r"delivery\.timeout\.ms"):
        script.run(flows, flows.commit())
    script.run(flows, flows.abort())

    assert flows.states.state is State.READY
    assert [r.committed for r in script.requests(EndTxnRequest)] == [False]


def test_records_expire_in_time_although_no_broker_answers():
    script = ScriptedCluster()
    flows = begun(script, delivery_timeout_ms=2_000)
    put(script, flows, b"one")
    script.down = {1}
    before_ms = script.now_ms

    with pytest.raises(AbortableError, match=r"delivery\.timeout\.ms"):
        script.run(flows, flows.commit())
    assert script.now_ms - before_ms < 5_000


def test_retries_can_be_limited():
    script = ScriptedCluster()
    flows = begun(script, retries=2)
    put(script, flows, b"one")
    script.say(ProduceRequest, 19, 19, 19)

    with pytest.raises(AbortableError):
        script.run(flows, flows.commit())
    assert len(script.requests(ProduceRequest)) == 3


def test_a_retry_sends_the_bytes_of_the_first_attempt():
    script = ScriptedCluster()
    flows = begun(script)
    put(script, flows, b"one")
    script.say(ProduceRequest, 19, LOSE)
    script.run(flows, flows.commit())

    sent = [
        bytes(r.topic_data[0].partition_data[0].records) for r in script.requests(ProduceRequest)
    ]
    assert len(sent) == 3
    assert len(set(sent)) == 1


def test_an_abort_drops_what_was_not_sent_and_says_so():
    script = ScriptedCluster()
    flows = begun(script)
    told = []
    put(script, flows, b"one", b"two", callback=lambda error, message: None)
    script.run(flows, flows.abort())
    told = list(flows.sender.deliveries)

    assert script.requests(ProduceRequest) == []
    assert script.requests(EndTxnRequest) == []
    assert [isinstance(error, KafkaError) for _, error, _ in told] == [True, True]
    assert {message.offset() for _, _, message in told} == {NO_OFFSET}
    assert flows.sender.outstanding == 0


def test_the_queue_is_bounded_by_records_and_by_bytes():
    script = ScriptedCluster()
    flows = begun(script, queue_buffering_max_messages=3)
    put(script, flows, b"1", b"2", b"3")
    with pytest.raises(BufferError):
        put(script, flows, b"4")
    script.run(flows, flows.drain())
    put(script, flows, b"4")

    flows = begun(ScriptedCluster(), queue_buffering_max_kbytes=1, batch_size=600)
    flows.cluster.topics["t"] = flows.cluster.topics.get("t") or _one_partition()
    for _ in range(3):
        flows.sender.put("t", None, b"x" * 500, 0, 1, None, None, 0)
    with pytest.raises(BufferError):
        flows.sender.put("t", None, b"x" * 500, 0, 1, None, None, 0)


def _one_partition():
    from dualwrite.flows.topics import Topic

    return Topic([1])


def test_a_record_above_the_limit_is_refused_when_it_is_produced():
    script = ScriptedCluster()
    flows = begun(script, message_max_bytes=1_000)
    put(script, flows, b"x" * 800)

    with pytest.raises(KafkaError) as caught:
        put(script, flows, b"x" * 1_000)
    assert caught.value.code == 10
    script.run(flows, flows.commit())
    assert record_count(script) == 1


def test_no_batch_is_above_the_limit():
    script = ScriptedCluster()
    flows = begun(script, batch_size=4_000)
    put(script, flows, *[bytes(300)] * 100)
    script.run(flows, flows.commit())

    for request in script.requests(ProduceRequest):
        for topic in request.topic_data:
            for data in topic.partition_data:
                assert BatchHeader.parse(data.records).length <= 4_000
    assert record_count(script) == 100


@pytest.mark.parametrize("key", [None, b"k"])
def test_batches_of_rows_keep_to_every_limit(key):
    script = ScriptedCluster()
    flows = begun(script, batch_size=4_000, batch_num_messages=30, queue_buffering_max_messages=50)
    script.run(flows, flows.know_topic("t"))
    rows = iter([(key, bytes(size), None, 0) for size in (0, 10, 120, 300) * 100])
    taken = -1
    while taken:
        taken, _ = flows.sender.put_rows("t", rows, -1, 1, script.now_ms)
        assert flows.sender.outstanding <= 50
        script.run(flows, flows.drain())
    script.run(flows, flows.commit())

    for request in script.requests(ProduceRequest):
        for topic in request.topic_data:
            for data in topic.partition_data:
                header = BatchHeader.parse(data.records)
                assert header.length <= 4_000
                assert header.record_count <= 30
    assert record_count(script) == 400


def test_a_single_row_leaves_with_the_end_of_the_transaction():
    script = ScriptedCluster()
    flows = begun(script, linger_ms=0)
    script.run(flows, flows.know_topic("t"))
    row = (None, b"one", None, 0)

    assert flows.sender.put_rows("t", iter([row]), -1, 1, script.now_ms) == (1, False)
    assert flows.sender.put_rows("t", iter([row]), -1, 1, script.now_ms) == (1, True)


def test_rows_before_one_that_cannot_be_had_are_in_the_transaction():
    def rows():
        for number in range(10):
            yield None, b"%d" % number, None, 0
        raise OSError("no more")

    script = ScriptedCluster()
    flows = begun(script)
    script.run(flows, flows.know_topic("t"))
    with pytest.raises(OSError, match="no more"):
        flows.sender.put_rows("t", rows(), -1, 1, script.now_ms)
    script.run(flows, flows.commit())

    assert record_count(script) == 10


def test_records_without_a_key_stick_to_a_partition_until_its_batch_is_closed():
    script = ScriptedCluster(partitions=4)
    flows = begun(script)
    choices = iter([2, 0, 3])
    flows.sender._choose = lambda count: next(choices)
    put(script, flows, b"1", b"2", b"3")
    script.run(flows, flows.drain())
    put(script, flows, b"4")
    script.run(flows, flows.commit())

    assert {p: sum(h.record_count for h in log) for p, log in script.logs.items()} == {2: 3, 0: 1}


def test_a_batch_lingers_and_then_goes_out_without_a_flush():
    script = ScriptedCluster()
    flows = begun(script, linger_ms=50)
    put(script, flows, b"one")
    script.run(flows, flows.pump())
    assert script.requests(ProduceRequest) == []

    script.now_ms += 50
    put(script, flows, b"two")
    assert len(script.requests(ProduceRequest)) == 1


def test_sequences_begin_anew_with_every_version_2_transaction():
    script = ScriptedCluster()
    flows = begun(script)
    for _ in range(3):
        put(script, flows, b"one", b"two")
        script.run(flows, flows.commit())
        flows.begin()

    assert [(h.producer_epoch, h.base_sequence) for h in script.logs[0]] == [(1, 0), (2, 0), (3, 0)]


def test_after_an_interrupt_everything_unanswered_is_sent_again():
    script = ScriptedCluster()
    flows = begun(script)
    put(script, flows, b"one")
    flow = flows.drain()
    flows.cluster.now_ms = script.now_ms
    step = next(flow)
    script._act(step.actions[0])  # it arrives, the answer is lost
    flow.close()
    flows.sender.recall_in_flight()
    script.run(flows, flows.commit())

    assert record_count(script) == 1
    assert len(script.requests(ProduceRequest)) == 2
