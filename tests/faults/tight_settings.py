"""Broker settings under which every border is crossed often."""

import random
from typing import Any


def tight_settings(seed: int) -> dict[str, Any]:
    """Small files and few epochs, differently for each seed."""
    chance = random.Random(f"{seed} settings")
    return {
        "transaction.state.log.num.partitions": chance.choice([1, 4]),
        "offsets.topic.num.partitions": chance.choice([1, 4]),
        "producer.epoch.max": chance.choice([20, 300, 32_767]),
        "journal.file.bytes": chance.choice([2**18, 2**22]),
        "journal.reserve.bytes": 2**20,
        "log.segment.bytes": chance.choice([2**15, 2**18, 2**30]),
        "checkpoint.interval.ms": chance.choice([500, 3_000, 30_000]),
        "group.min.session.timeout.ms": 1_000,
    }
