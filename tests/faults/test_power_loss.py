"""Power loss: copies of a mounted disk image, taken while the broker works, are what a machine finds
when it boots again.

A client lives its scenario, and a read_committed reader beside it notes what it is given. The images
are taken at random moments, until enough of them show the client in the middle of its work.

    pytest -s tests/faults/test_power_loss.py
"""

import copy
import os
import random
import sys
import threading
from collections import Counter
from contextlib import ExitStack

import pytest

from dualwrite.broker import BrokerProcess
from dualwrite.broker.broker_process import BrokerProcessError
from tests.faults.images import make_image, mounted, pull_the_plug
from tests.faults.scenario import LAST_STEPS, Story, live, verify, watching
from tests.faults.test_syscalls import create_topic, live_again

IMAGES = 20
IMAGES_LONG = 500
IMAGES_PER_LIFE = 5
INSIDE_SHARE = 0.5
# After a step of the client, so that an image falls into its next call.
PAUSE_MAX = 0.005
ROUNDS = 20
STEPS = 2 * ROUNDS + LAST_STEPS
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


def take_images(memory, count, chance, command):
    """Run the scenario on an image and give copies of it with what clients had been told then.

    The last one is taken when all is over, and everything was read.
    """
    image = memory / "image"
    make_image(image)
    found = []
    with ExitStack() as stack:
        root = stack.enter_context(mounted(image, memory / "mount"))
        broker = stack.enter_context(
            BrokerProcess(root / "data", settings=SETTINGS, command=command)
        )
        create_topic(broker.bootstrap_servers)
        story = Story()
        reader = stack.enter_context(watching(broker.bootstrap_servers, story))
        life = threading.Thread(target=live, args=(broker.bootstrap_servers, story, ROUNDS))
        life.start()
        for step in moments(count, chance):
            while life.is_alive() and story.steps < step:
                life.join(0.001)
            life.join(chance.uniform(0, PAUSE_MAX))
            if step == STEPS:
                life.join()
                assert story.is_complete
                reader.join()
            target = memory / f"copy-{step}"
            known = pull_the_plug([broker.pid], image, target, lambda: copy.deepcopy(story))
            found.append((target, known))
    return found


def moments(count, chance):
    """The steps of the client after which images are taken; one is among its last, one is the last."""
    early = chance.sample(range(STEPS - LAST_STEPS), count - 2)
    return [*sorted(early), STEPS - chance.randint(1, LAST_STEPS), STEPS]


def is_inside(story):
    """The client has been told something, and there is more to come."""
    return not story.is_complete and bool(story.committed or story.prepared)


def boot(memory, image, story):
    """Start a broker on what is left, and compare with what was told."""
    with ExitStack() as stack:
        root = stack.enter_context(mounted(image, memory / "mount"))
        broker = stack.enter_context(BrokerProcess(root / "data", settings=SETTINGS))
        verify(story, broker.bootstrap_servers)
        assert live_again(broker.bootstrap_servers)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_nothing_acknowledged_or_seen_is_lost_by_a_power_loss(memory, request, seed):
    chance = random.Random(seed)
    wanted = IMAGES_LONG if request.config.getoption("--long") else IMAGES
    count = Counter()
    while count["images"] < wanted or count["inside"] < wanted * INSIDE_SHARE:
        for image, story in take_images(memory, IMAGES_PER_LIFE, chance, BUSY):
            boot(memory, image, story)
            count["images"] += 1
            count["inside"] += is_inside(story)
            count["inside, something seen"] += is_inside(story) and bool(story.seen)
            count["prepared, not decided"] += story.prepared is not None and not story.decided
            count["values seen"] += len(story.seen)
        print(dict(count), flush=True)
    assert count["inside, something seen"]


@pytest.mark.slow
def test_a_broker_that_does_not_sync_is_found_out(memory):
    """The method can fail: what was only written is gone, by what writers and by what readers know."""
    command = [sys.executable, "-c", LYING, "broker"]
    images = take_images(memory, IMAGES_PER_LIFE, random.Random(0), command)
    image, story = images[-1]
    assert story.committed
    assert story.seen
    with pytest.raises((AssertionError, BrokerProcessError)):
        boot(memory, image, story)
    with pytest.raises(AssertionError, match="seen and gone"):
        boot(memory, image, Story(seen=story.seen))
