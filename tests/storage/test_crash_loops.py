"""A broker that dies again and again, before a checkpoint is due in any one life; found by a soak.

What is left to replay would grow with every life, and with it the time of a start, until somebody
who waits for the start gives up and kills the broker in it.
"""

import pytest

from dualwrite.broker.clock import Now
from dualwrite.broker.storage.entry import Append, CreateLog
from dualwrite.broker.storage.memory_disk import MemoryDisk
from dualwrite.broker.storage.settings import StorageSettings
from dualwrite.broker.storage.storage import Storage
from dualwrite.wire.records import build_batch
from tests.broker.node_driver import NodeDriver

KEY = (bytes(range(16)), 0)
LIVES = 10


def opened(disk, settings):
    return Storage.open(disk.attach(), settings, lambda payload: None)


def live(disk, settings, lived_ms, size):
    """One short life; whether a checkpoint was due at its beginning, and at its end."""
    storage = opened(disk, settings)
    began = Now(1, storage.steady_ms)
    was_due = storage.checkpoint_due(began)
    ended = Now(1, began.steady_ms + lived_ms)
    if KEY not in storage.logs:
        storage.add([CreateLog(KEY)], began)
    storage.add([Append(KEY, build_batch([(b"k", bytes(size), None, 1)]))], ended)
    storage.flush()
    disk.kill()
    return was_due, storage.checkpoint_due(ended)


@pytest.mark.parametrize(
    ("settings", "lived_ms", "size"),
    [
        (StorageSettings(reserve_bytes=0, checkpoint_ms=1_000), 300, 10),
        (StorageSettings(reserve_bytes=0, checkpoint_bytes=1_000), 0, 300),
    ],
    ids=["time", "bytes"],
)
def test_what_earlier_lives_have_left_counts(settings, lived_ms, size):
    disk = MemoryDisk()
    lives = [live(disk, settings, lived_ms, size) for _ in range(LIVES)]

    assert lives[0] == (False, False)
    assert not any(at_the_end and not at_the_start for at_the_start, at_the_end in lives[5:])
    assert all(at_the_start for at_the_start, _ in lives[5:])

    storage = opened(disk, settings)
    storage.checkpoint(b"")
    disk.kill()
    assert live(disk, settings, lived_ms, size) == (False, False)


def test_a_start_makes_the_checkpoint_that_is_due():
    driver = NodeDriver(**{"checkpoint.interval.ms": 10_000})
    driver.create_topic()
    left = []
    for number in range(LIVES):
        for _ in range(20):
            driver.produce(b"%d" % number)
        driver.passed_ms += 3_000  # no chore comes in between; the next entry tells the time
        driver.produce(b"last")
        left.append(driver.node.storage.position - driver.node.storage._checkpointed_position)
        driver.disk.kill()
        driver._open()

    assert max(left) < left[0] * LIVES / 2, left
