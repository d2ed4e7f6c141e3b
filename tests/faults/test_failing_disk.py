"""The disk under a working broker fails as real ones do: gone, read-only, or a file may not grow.

Each time the broker must end with 70, and what it had acknowledged by then, or shown to a reader, must
be there when the disk is well again.

    pytest -s tests/faults/test_failing_disk.py
"""

import fcntl
import os
import random
import resource
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dualwrite.broker import BrokerProcess
from tests.faults.images import OPTIONS, make_image, mounted
from tests.faults.scenario import Story, live, verify, watching
from tests.faults.test_power_loss import BUSY, LYING, SETTINGS
from tests.faults.test_syscalls import STORAGE_FAILED, chosen_seed, create_topic, live_again

# The client goes on until the broker is gone.
ENDLESS = 10**6
STEPS = (10, 60)
EXT4_IOC_SHUTDOWN = 0x8004587D
WITHOUT_LOG_FLUSH = 2


def work_until_it_fails(broker, story, steps, fail):
    """A client and a reader at work; the disk fails in the middle. Gives the broker's exit code."""
    create_topic(broker.bootstrap_servers)
    with watching(broker.bootstrap_servers, story):
        life = threading.Thread(target=live, args=(broker.bootstrap_servers, story, ENDLESS))
        life.start()
        while life.is_alive() and story.steps < steps:
            life.join(0.001)
        fail()
        code = broker.wait()
        life.join()
    assert story.committed
    assert story.seen
    assert not story.is_complete
    return code


def vanish(root, _):
    """What is not on the disk by now never comes there, the journal of the file system included."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
    finally:
        os.close(descriptor)


def turn_read_only(root, _):
    """An error of the file system, which was mounted so that it may not be written any more then."""
    number = root.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
    try:
        trigger.write_text("1")
    except OSError as error:
        pytest.skip(f"a file system cannot be made to fail here: {error}")


def stop_growth(chance):
    """No file may be longer than a drawn size, so that a write may fail half-way.

    Python ignores SIGXFSZ: the call fails with EFBIG. That is no lack of space, which could pass.
    """
    size = chance.randint(0, 16 * 2**10)

    def fail(_, broker):
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size, size))

    return fail


def strike(directory, steps, command, fail):
    """Gives the broker's exit code and output, and what the client was told."""
    directory.mkdir()
    image, story = directory / "image", Story()
    make_image(image)
    with ExitStack() as stack:
        root = stack.enter_context(
            mounted(image, directory / "mount", f"{OPTIONS},errors=remount-ro")
        )
        broker = stack.enter_context(
            BrokerProcess(root / "data", settings=SETTINGS, command=command)
        )
        code = work_until_it_fails(broker, story, steps, lambda: fail(root, broker))
    return code, broker.output, story


def check(directory, story):
    """The disk is well again."""
    with (
        mounted(directory / "image", directory / "mount") as root,
        BrokerProcess(root / "data", settings=SETTINGS) as broker,
    ):
        verify(story, broker.bootstrap_servers)
        assert live_again(broker.bootstrap_servers)


@pytest.fixture(scope="module")
def struck(memory, request):
    """All at a time: they mostly wait for clients whose broker is gone."""
    seed = chosen_seed(request.config)
    print(f"seed {seed}", flush=True)
    chance = random.Random(seed)
    cases = {
        "vanishes": (BUSY, vanish),
        "turns read-only": (BUSY, turn_read_only),
        "takes no longer files": (BUSY, stop_growth(chance)),
        "vanishes, and was not synced": ([sys.executable, "-c", LYING, "broker"], vanish),
    }
    with ThreadPoolExecutor(len(cases)) as pool:
        yield {
            name: pool.submit(strike, memory / name, chance.randint(*STEPS), *case)
            for name, case in cases.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "errors"),
    [
        ("vanishes", ["Input/output error"]),
        ("turns read-only", ["Input/output error", "Read-only file system"]),
        ("takes no longer files", ["File too large"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broker_whose_disk_fails_has_acknowledged_what_is_there(memory, struck, what, errors):
    code, output, story = struck[what].result()
    print(f"{len(story.committed)} committed, {len(story.seen)} values seen, exit code {code}")

    assert code == STORAGE_FAILED, output[-2000:]
    assert any(error in output for error in errors), output[-2000:]
    check(memory / what, story)


@pytest.mark.slow
def test_a_broker_that_does_not_sync_is_found_out_when_its_disk_vanishes(memory, struck):
    what = "vanishes, and was not synced"
    _, _, story = struck[what].result()

    with pytest.raises(AssertionError, match="seen and gone"):
        check(memory / what, story)
