"""Names of a sink: its transactional ids, its decision topic, and how they are recognised again.

The id of a slot is `spark.<sink>.<partition>.<k>`: partition of the task, and the k-th transaction
that this partition has had open at the same time. A sink's name holds no dot and ids are matched
in full, so no sink's ids are contained in another's.
"""

import re

from dualwrite.errors import ConfigurationError

SLOTS_PER_PARTITION_MAX = 16
"""A partition with more abandoned transactions than this has a fault that a retry cannot cure."""

DECISION_TOPICS = "__dualwrite_decisions."
"""How the names of all sinks' decision topics begin."""

_SINK = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)


def check_sink(sink: str) -> str:
    """Return the sink's name, or raise `ConfigurationError`."""
    if not isinstance(sink, str) or not _SINK.fullmatch(sink):
        raise ConfigurationError(f"sink id must match {_SINK.pattern}: {sink!r}")
    return sink


def slot_id(sink: str, partition: int, k: int) -> str:
    return f"spark.{sink}.{partition}.{k}"


def slot_pattern(sink: str) -> str:
    """A regular expression that matches the sink's slots in full, for ListTransactions."""
    return rf"^spark\.{re.escape(sink)}\.[0-9]+\.[0-9]+$"


def is_slot_of(sink: str, transactional_id: str) -> bool:
    return re.fullmatch(slot_pattern(sink), transactional_id, re.ASCII) is not None


def partition_of(transactional_id: str) -> int:
    """The partition of the task that used this slot."""
    return int(transactional_id.split(".")[2])


def coordinator_id(sink: str) -> str:
    """The transactional id that writes the sink's decision topic, and fences older writers of it."""
    return f"spark.{sink}.coordinator"


def decision_topic(sink: str) -> str:
    return f"{DECISION_TOPICS}{sink}"
