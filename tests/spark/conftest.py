"""One Spark session and one broker for all tests of this folder."""

import os
import secrets
from pathlib import Path

import pytest

from dualwrite.broker import BrokerProcess
from tests.spark import faults

HERE = Path(__file__).parent
ROUND_SECONDS_MAX = 3600

pytest.register_assert_rewrite("tests.spark.campaign")

collect_ignore_glob: list[str] = []


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if HERE in item.path.parents and "soak_seconds" in getattr(item, "fixturenames", ()):
            # The last round is begun before the time is over; the first of two limits counts.
            seconds = config.getoption("--soak") + ROUND_SECONDS_MAX
            item.add_marker(pytest.mark.timeout(seconds), append=False)


@pytest.fixture(scope="session")
def faults_folder(tmp_path_factory):
    """Where faults are planted; the workers know it from their environment."""
    folder = tmp_path_factory.mktemp("faults")
    before = os.environ.get(faults.FOLDER)
    os.environ[faults.FOLDER] = str(folder)
    yield folder
    if before is None:
        del os.environ[faults.FOLDER]


@pytest.fixture(scope="session")
def spark(tmp_path_factory, faults_folder):
    from tests.spark.sessions import start

    session = start("local[2,2]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker():
    """A broker in a process of its own, with room for topics of every test."""
    process = BrokerProcess()
    process.start()
    yield process
    process.stop()


@pytest.fixture
def servers(broker):
    return broker.bootstrap_servers


@pytest.fixture
def name():
    """A name that no other test has: for sinks and topics."""
    return f"t{secrets.token_hex(4)}"
