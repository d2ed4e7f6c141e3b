"""One set of Kafka settings for three clients: our producer, and confluent-kafka's other two."""

from collections.abc import Mapping
from typing import Any

_OF_PRODUCERS = (
    "compression", "linger", "queue.", "batch.", "partitioner", "message.", "max.in.flight",
    "delivery.", "sticky.", "acks", "enable.idempotence", "request.", "max.block", "transaction",
    "retries", "retry.", "enable.gapless",
)  # fmt: skip


def consumer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a producer's settings holds for a consumer or an admin client too."""
    return {k: v for k, v in config.items() if not k.startswith(_OF_PRODUCERS)}
