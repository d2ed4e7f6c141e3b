"""Requests that are well formed and make no sense, and files that are damaged: answered or refused.

A handler that raises costs the client its connection, so nothing may be raised for what a client sends.
"""

from copy import deepcopy
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualwrite.broker.storage.errors import StorageError
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.codec import encode
from dualwrite.wire.message import WireError, schema_of
from tests.broker.node_driver import Awaiting, NodeDriver, await_answers
from tests.fuzz.samples import damage, requests, sample

FUZZ = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
SEEDS = st.integers(0, 2**32 - 1)
# These belong to the connection, which the driver has none of; tests/fuzz/targets.py feeds them.
OF_THE_CONNECTION = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS}


def served(node):
    """The requests that the broker serves, by API and version."""
    return [
        (cls, version)
        for cls, version in requests()
        if schema_of(cls).api_key not in OF_THE_CONNECTION
        and (entry := node.apis.get(schema_of(cls).api_key)) is not None
        and entry.first <= version <= entry.last
    ]


@FUZZ
@given(SEEDS)
def test_every_request_is_answered_once(seed):
    random = Random(seed)
    driver = NodeDriver()
    driver.create_topic("orders")
    driver.begin("orders-0", topic="orders", enable_2pc=True)
    awaiting = []
    apis = served(driver.node)
    for _ in range(25):
        cls, version = random.choice(apis)
        request = sample(cls, version, random)
        try:
            encode(request, version)
        except WireError:
            continue  # a value that this version can't carry
        driver.connection = Awaiting(request, version)
        awaiting.append(driver.connection)
        driver.send(request, version)
        driver.node.flush(driver.now)
    driver.pass_time(2_000)
    await_answers(driver, awaiting)
    driver.node.close()


def _life():
    driver = NodeDriver(journal_file_bytes=65_536)
    driver.create_topic()
    for number in range(5):
        pair = driver.begin(f"id-{number}", b"x" * 500, enable_2pc=number % 2 == 0)
        if number != 4:
            driver.end(f"id-{number}", pair, commit=number != 1)
    driver.disk.crash()
    return driver.disk


@pytest.fixture(scope="module")
def disk():
    return _life()


def files(disk, folder=""):
    for name in disk.listdir(folder):
        path = f"{folder}/{name}" if folder else name
        try:
            yield from files(disk, path)
        except FileNotFoundError:
            if disk.contents(path):
                yield path


def test_damaged_files_are_refused_or_opened(disk):
    paths = [path for path in files(disk) if path != "reserve"]

    @FUZZ
    @given(SEEDS)
    def check(seed):
        random = Random(seed)
        copy = deepcopy(disk)
        path = random.choice(paths)

        def change(contents):
            written = bytes(contents).rstrip(b"\0")
            contents[:] = damage(written, random) + bytes(max(0, len(contents) - len(written)))

        copy.damage(path, change)
        try:
            driver = NodeDriver(copy)
        except StorageError:
            return
        driver.node.close()

    check()
