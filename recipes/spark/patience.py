"""Asking Kafka again while a broker is away: librdkafka's admin calls give up at once."""

import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.2

_PASSING = {
    KafkaError._NOENT,  # no leader is known at the moment
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._WAIT_COORD,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
}


def passes(error: KafkaError) -> bool:
    """True for an error that goes away when the broker is back."""
    return bool(error.retriable()) or error.code() in _PASSING


def patiently(call: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """Call until it succeeds; what does not pass by itself is raised at once."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except KafkaException as error:
            if not passes(error.args[0]) or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_SECONDS)
