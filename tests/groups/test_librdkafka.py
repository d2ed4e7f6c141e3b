"""Groups of real consumers (librdkafka) of both protocols, over rebalances and kill -9."""

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from dualwrite.broker import BrokerProcess
from tests.groups.readers import (
    WAIT_SECONDS,
    Reader,
    admin,
    begin,
    committed,
    create_topic,
    produce,
    readers,
    settings,
    share,
    wait_for,
)

QUICK = {
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": 6_000,
    "group.min.session.timeout.ms": 1_000,
}
CLASSIC = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 100}
KINDS = {
    "range": {"partition.assignment.strategy": "range", **CLASSIC},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky", **CLASSIC},
    "new": {"group.protocol": "consumer"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def broker():
    with BrokerProcess(settings=QUICK) as broker:
        yield broker


@pytest.fixture
def topic(broker, request):
    name = f"t-{abs(hash(request.node.name))}"
    create_topic(broker, name)
    return name


@every_kind
def test_three_members_share_hand_over_and_read_everything(broker, topic, kind):
    group = f"g-{topic}"
    begin(broker, group, topic)
    with readers(lambda: Reader(broker, group, topic, **KINDS[kind]), 3) as members:
        wait_for(lambda: share(members), "three members share six partitions")
        produce(broker, topic, [b"a%d" % n for n in range(60)])
        wait_for(lambda: sum(len(m.values) for m in members) >= 60, "all messages are read")
        members.pop().stop()
        wait_for(lambda: share(members), "two members share six partitions")
        produce(broker, topic, [b"b%d" % n for n in range(60)])
        wait_for(lambda: committed(broker, group, topic) == 120, "all messages are committed")
        read = [place for m in members for place in m.places]

    # The third one's share is missing here; nobody reads a place twice.
    assert len(read) == len(set(read))


@every_kind
def test_broker_is_killed_and_members_go_on(kind):
    with BrokerProcess(settings=QUICK) as broker:
        create_topic(broker, "t")
        with readers(lambda: Reader(broker, "g", "t", **KINDS[kind]), 3) as members:
            wait_for(lambda: share(members), "three members share six partitions")
            before = {m.member_id for m in describe(broker, "g").members}
            for life in range(2):
                done = committed(broker, "g", "t")
                produce(broker, "t", [b"%d-%d" % (life, n) for n in range(30)])
                wait_for(lambda: committed(broker, "g", "t") > done, "work is under way")  # noqa: B023
                broker.kill()
                broker.restart()
                total = 30 * (life + 1)
                wait_for(lambda: committed(broker, "g", "t") == total, "all is committed")  # noqa: B023
            assert {m.member_id for m in describe(broker, "g").members} == before
            assert share(members)
            values = {value for m in members for value in m.values}

        assert values == {b"%d-%d" % (life, n) for life in range(2) for n in range(30)}


def describe(broker, group):
    client = admin(broker)
    return client.describe_consumer_groups([group])[group].result(WAIT_SECONDS)


@pytest.mark.parametrize("kind", ["range", "cooperative"])
def test_static_member_comes_back_without_a_rebalance(broker, topic, kind):
    def start(name):
        return Reader(broker, f"g-{topic}", topic, **KINDS[kind], **{"group.instance.id": name})

    stays = start("stays")
    goes = start("goes")
    try:
        wait_for(lambda: share([stays, goes]), "two members share six partitions")
        before, rebalances = goes.assigned, stays.assignments
        goes.stop()
        goes = start("goes")
        wait_for(lambda: goes.assigned, "the member is back")

        assert goes.assigned == before
        assert stays.assignments == rebalances
    finally:
        stays.stop()
        goes.stop()


def test_static_member_of_the_new_protocol_comes_back(broker, topic):
    more = {"group.protocol": "consumer", "group.instance.id": "me"}
    first = Reader(broker, f"g-{topic}", topic, **more)
    wait_for(lambda: len(first.assigned) == 6, "all partitions are assigned")
    epoch = describe(broker, f"g-{topic}")
    first.stop()
    second = Reader(broker, f"g-{topic}", topic, **more)
    wait_for(lambda: len(second.assigned) == 6, "all partitions are assigned again")
    found = describe(broker, f"g-{topic}")
    second.stop()

    assert [m.group_instance_id for m in found.members] == ["me"]
    assert [m.member_id for m in found.members] != [m.member_id for m in epoch.members]


def test_commit_metadata_comes_back(broker, topic):
    consumer = Consumer(settings(broker, f"g-{topic}"))
    places = [TopicPartition(topic, 0, 7, "größer"), TopicPartition(topic, 1, 8)]
    consumer.commit(offsets=places, asynchronous=False)
    found = consumer.committed([TopicPartition(topic, p) for p in range(3)], WAIT_SECONDS)
    consumer.close()

    assert [(p.offset, p.metadata) for p in found] == [(7, "größer"), (8, None), (-1001, None)]


@pytest.mark.parametrize("kind", ["range", "new"])
def test_consume_transform_produce(broker, topic, kind, read_committed):
    """Offsets go with the transaction: an abort leaves them, a commit moves them (KIP-447)."""
    group, output = f"g-{topic}", f"{topic}-out"
    create_topic(broker, output, 1)
    produce(broker, topic, [b"%d" % n for n in range(12)])
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": topic,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_SECONDS)
    consumer = Consumer(settings(broker, group, **KINDS[kind]))
    consumer.subscribe([topic])
    for commits in (False, True):
        batch = take(consumer, 12)
        producer.begin_transaction()
        for message in batch:
            producer.produce(output, message.value() * 2)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        if commits:
            producer.commit_transaction(WAIT_SECONDS)
        else:
            producer.abort_transaction(WAIT_SECONDS)
            assert committed(broker, group, topic) == 0
            for partition in consumer.assignment():
                consumer.seek(TopicPartition(topic, partition.partition, 0))
    assert committed(broker, group, topic) == 12
    stale = consumer.consumer_group_metadata()
    consumer.close()

    doubled = read_committed(output, broker.bootstrap_servers)
    assert sorted(m.value() for m in doubled) == sorted(b"%d" % n * 2 for n in range(12))
    producer.begin_transaction()
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 99)], stale)
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(WAIT_SECONDS)
    assert committed(broker, group, topic) == 12


def take(consumer, count):
    messages = []
    while len(messages) < count:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None, "no message came"
        assert message.error() is None
        messages.append(message)
    return messages


def test_operators_view(broker, topic):
    group, client = f"g-{topic}", admin(broker)
    reader = Reader(broker, group, topic, **KINDS["range"])
    try:
        wait_for(lambda: len(reader.assigned) == 6, "all partitions are assigned")
        found = describe(broker, group)
        assert found.state.name == "STABLE"
        assert [len(m.assignment.topic_partitions) for m in found.members] == [6]
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            client.delete_consumer_groups([group])[group].result(WAIT_SECONDS)
    finally:
        reader.stop()
    assert group in {g.group_id for g in client.list_consumer_groups().result().valid}
    client.delete_consumer_groups([group])[group].result(WAIT_SECONDS)
    assert group not in {g.group_id for g in client.list_consumer_groups().result().valid}
