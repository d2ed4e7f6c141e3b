"""What a read_committed consumer sees, for the examples' last line."""

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


def committed_keys(servers: str) -> list[str]:
    """The keys that a read_committed consumer sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics("orders", timeout=10).topics["orders"].partitions
    consumer.assign([TopicPartition("orders", p, OFFSET_BEGINNING) for p in partitions])
    keys, ended = [], 0
    while ended < len(partitions):
        message = consumer.poll(10)
        if message is None:
            raise RuntimeError("the broker did not answer")
        if message.error() is None:
            keys.append(message.key().decode())
        else:
            ended += 1
    consumer.close()
    return keys
