"""Power loss: copies of a mounted disk image, taken while the broker works, are what a machine finds
when it boots again.

The image lies in memory and is mounted by a loop device, so the copy holds what the file system has
been made to write (fsync) and not what waits in the page cache. Needs root; skipped elsewhere.
"""

import copy
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dualwrite.broker import BrokerProcess
from dualwrite.broker.broker_process import BrokerProcessError
from tests.faults.scenario import Story, live, verify
from tests.faults.test_syscalls import create_topic, live_again

IMAGE_BYTES = 48 * 2**20
IMAGES = 20
IMAGES_LONG = 500
IMAGES_PER_LIFE = 5
SETTINGS = {
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "journal.file.bytes": 2**20,
    "journal.reserve.bytes": 2**20,
    "checkpoint.journal.bytes": 1,
}
# So often are checkpoints due that images are taken in the middle of them.
BUSY = [
    sys.executable, "-m", "tests.faults.failing_os",
    "--counter", os.devnull, "--looks-ms", "5", "--", "broker",
]  # fmt: skip
# A broker that says "durable" and only wrote to the page cache.
LYING = """
import os, sys
os.fsync = os.fdatasync = lambda descriptor: None
from dualwrite.cli import main
sys.argv[0] = "dualwrite"
main()
"""


def run(*command):
    subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)


@contextmanager
def mounted(image, where):
    where.mkdir(exist_ok=True)
    run("mount", "-o", "loop", image, where)
    try:
        yield where
    finally:
        run("umount", where)


@pytest.fixture
def memory(tmp_path):
    """A directory in memory, on a machine on which images can be mounted."""
    if os.geteuid() != 0 or not Path("/dev/shm").is_dir():
        pytest.skip("power loss needs root and /dev/shm")
    directory = Path("/dev/shm") / f"dualwrite-power-{os.getpid()}-{random.randrange(10**9)}"
    directory.mkdir()
    try:
        make_image(directory / "probe")
        with mounted(directory / "probe", directory / "mount"):
            pass
        yield directory
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"an ext4 image cannot be made and mounted here: {error}")
    finally:
        shutil.rmtree(directory)


def make_image(path):
    with path.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    run("mkfs.ext4", "-q", "-F", path)


def pull_the_plug(broker, image, target, story):
    """Copy the image at one instant: the broker stands still, and two copies are the same.

    Gives the story as the client knows it at that instant: it can only know what the broker said
    before it was stopped.
    """
    broker.pause()
    try:
        content = image.read_bytes()
        while (again := image.read_bytes()) != content:
            content = again  # the kernel was writing back
        known = copy.deepcopy(story)
    finally:
        broker.go_on()
    target.write_bytes(content)
    return known


def take_images(memory, count, chance, command):
    """Run the scenario on an image and give copies of it with what the client had been told then."""
    image = memory / "image"
    make_image(image)
    found = []
    with mounted(image, memory / "mount") as root:
        broker = BrokerProcess(root / "data", settings=SETTINGS, command=command)
        with broker:
            create_topic(broker.bootstrap_servers)
            story = Story()
            life = threading.Thread(target=live, args=(broker.bootstrap_servers, story))
            life.start()
            for number in range(count):
                if number == count - 1:
                    life.join()
                time.sleep(chance.uniform(0, 0.12))  # a random moment is what is wanted
                target = memory / f"copy-{number}"
                found.append((target, pull_the_plug(broker, image, target, story)))
    return found


def boot(memory, image, story):
    """Start a broker on what is left, and compare with what was told."""
    with ExitStack() as stack:
        root = stack.enter_context(mounted(image, memory / "mount"))
        broker = stack.enter_context(BrokerProcess(root / "data", settings=SETTINGS))
        verify(story, broker.bootstrap_servers)
        assert live_again(broker.bootstrap_servers)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_nothing_acknowledged_is_lost_by_a_power_loss(memory, request, seed):
    chance = random.Random(seed)
    wanted = IMAGES_LONG if request.config.getoption("--long") else IMAGES
    print(f"{wanted} images", flush=True)
    for _ in range(wanted // IMAGES_PER_LIFE):
        for image, story in take_images(memory, IMAGES_PER_LIFE, chance, BUSY):
            boot(memory, image, story)


@pytest.mark.slow
def test_a_broker_that_does_not_sync_is_found_out(memory):
    """The method can fail: what was only written is gone."""
    command = [sys.executable, "-c", LYING, "broker"]
    images = take_images(memory, IMAGES_PER_LIFE, random.Random(0), command)
    image, story = images[-1]
    assert story.committed
    with pytest.raises((AssertionError, BrokerProcessError)):
        boot(memory, image, story)
