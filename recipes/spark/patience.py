"""Asking Kafka again while a broker is away: librdkafka's admin calls give up at once."""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from dualwrite.errors import DualWriteError

T = TypeVar("T")

PATIENCE_MS = 60_000
ANSWER_SECONDS = 10.0
"""How long one call may wait, of all that there may be."""
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


def seconds_of(config: Mapping[str, Any]) -> float:
    """How long Kafka may be away, by `max.block.ms`."""
    return int(config.get("max.block.ms", PATIENCE_MS)) / 1000


def patiently(call: Callable[[float], T], config: Mapping[str, Any]) -> T:
    """Call until it succeeds, for `max.block.ms`; what does not pass by itself is raised at once.

    `call` gets the seconds that it may take.
    """
    seconds = seconds_of(config)
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call(min(ANSWER_SECONDS, seconds))
        except KafkaException as error:
            if not passes(error.args[0]):
                raise
            if time.monotonic() > deadline:
                raise DualWriteError(
                    f"Kafka at {config['bootstrap.servers']} did not answer within {seconds:g} s:"
                    f" {error.args[0].str()}"
                ) from error
        time.sleep(PAUSE_SECONDS)
