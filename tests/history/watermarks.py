"""Last stable offset and high watermark of some partitions, asked for again and again.

The checker holds them against each other, against what was read and against their own past, so they
are asked for while everything else goes wrong, and by new connections each time.
"""

import random
from collections.abc import Sequence

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.history.history import Recorder

Offsets = dict[str, int]  # by TOPIC/PARTITION


def ends(
    admin: AdminClient, keys: Sequence[str], isolation: IsolationLevel, timeout: float = 30
) -> Offsets:
    """LSO or HW of every partition."""
    asked = {}
    for key in keys:
        topic, partition = key.split("/")
        asked[TopicPartition(topic, int(partition))] = OffsetSpec.latest()
    futures = admin.list_offsets(asked, isolation_level=isolation, request_timeout=timeout)
    return {f"{tp.topic}/{tp.partition}": f.result().offset for tp, f in futures.items()}


class Watcher:
    """Records what it is told as one reader; `high` is the last that it knows."""

    def __init__(self, recorder: Recorder, bootstrap: str, keys: Sequence[str]) -> None:
        self._recorder = recorder
        self._bootstrap = bootstrap
        self._keys = keys
        self.answers = 0
        self.high: Offsets = {}

    def look(self, chance: random.Random | None = None) -> None:
        """LSO first, then HW: asked in this order, LSO <= HW must hold."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        try:
            stable = ends(admin, self._keys, IsolationLevel.READ_COMMITTED, timeout=2)
            high = ends(admin, self._keys, IsolationLevel.READ_UNCOMMITTED, timeout=2)
        except KafkaException:
            return  # the broker is down
        self.record(stable, high)

    def record(self, stable: Offsets, high: Offsets) -> None:
        if min(*stable.values(), *high.values()) < 0:
            return  # librdkafka's way to say that one answer is missing
        self.answers += 1
        self.high = high
        for key in self._keys:
            self._recorder.write("watermark", reader="w", key=key, lso=stable[key], hw=high[key])
