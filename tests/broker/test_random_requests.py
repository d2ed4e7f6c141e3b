"""Any request that can be decoded gets one answer that can be encoded, whatever it says.

Values are drawn from what exists, what almost exists and what is out of range. Run one seed again with
`pytest tests/broker/test_random_requests.py -k seed-7`.
"""

import random

import pytest

from dualwrite.broker.call import Call
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.codec import decode, encode
from dualwrite.wire.message import NO_VERSION, Versions, WireError, specs_of
from tests.broker.node_driver import Awaiting, NodeDriver, await_answers
from tests.broker.raw_client import batch, fetch_request

SEEDS = (*range(4), 149)  # 149 once had a bad value appended to a list setting
LONG_SEEDS = range(100, 200)
REQUESTS = 1_500
NEVER = Versions(NO_VERSION, -1)

TEXTS = ["", "t", "u", "x", "nobody", "__consumer_offsets", "__transaction_state", "range"]
TEXTS += ["consumer", "a" * 300, "retention.ms", "cleanup.policy", "compact", "1", "ä"]
SMALL = [0, 1, 2, 3, 4, -1, 127]
NUMBERS = [0, -1, 1, 2, 3, 5, -2, -3, 127, 1_000, 2**31 - 1, -(2**31)]


class Requests:
    """Random requests about the topics and the open transaction of a node."""

    def __init__(self, chance, pair, topic_id):
        self._chance = chance
        transactional = batch(b"v", pair=pair, sequence=1, transactional=True)
        self._values = {
            "string": TEXTS,
            "int8": SMALL,
            "int16": [0, 1, -1, 2, 3, 5, 32_767, pair[1]],
            "uint16": [0, 1, 65_535],
            "int32": NUMBERS,
            "int64": [*NUMBERS, pair[0]],
            "float64": [0.0, 1.5],
            "bool": [True, False],
            "uuid": [bytes(16), topic_id, b"y" * 16],
            "bytes": [b"", b"abc", bytes(20)],
            "records": [b"", b"abc", batch(b"v"), transactional],
        }

    def build(self, cls, version):
        return cls(
            **{
                name: self._value(spec, version)
                for name, spec in specs_of(cls)
                if version in spec.versions
            }
        )

    def _value(self, spec, version):
        if version in spec.nullable and self._chance.random() < 0.1:
            return None
        if spec.kind.name == "struct":
            return self.build(spec.of, version)
        if spec.kind.name != "array":
            return self._chance.choice(self._values[spec.kind.name])
        count = self._chance.choice([0, 1, 1, 2])
        if isinstance(spec.of, type):
            return [self.build(spec.of, version) for _ in range(count)]
        element = spec._replace(kind=spec.of, of=None, nullable=NEVER)
        return [self._value(element, version) for _ in range(count)]


def run(seed):
    chance = random.Random(seed)
    driver = NodeDriver()
    driver.create_topic("t")
    driver.create_topic("u")
    pair = driver.begin("x")
    requests = Requests(chance, pair, driver.node.topics.get("t").id)
    apis = list(driver.node.apis.values())
    awaiting = []  # since the last crash, which takes the connections with it

    def send(key, version, request):
        awaiting.append(Awaiting(request, version))
        rights = driver.node.rights
        driver.node.handle(
            Call(key, version, 1, "random", request, awaiting[-1], rights, driver.now)
        )

    # Random fetches have a mistake each, so that none of them waits.
    polls = random.Random(f"{seed} polls")
    for _ in range(REQUESTS):
        if polls.random() < 0.03:
            wait_ms, min_bytes = polls.choice([1, 500, 2**31 - 1]), polls.choice([1, 2**20])
            poll = fetch_request("t", max_wait_ms=wait_ms, min_bytes=min_bytes)
            send(ApiKey.FETCH, 12, poll)
        api = chance.choice(apis)
        version = chance.randint(api.first, api.last)
        try:
            data = encode(requests.build(api.request, version), version)
            request = decode(api.request, data, version)
        except WireError:
            continue  # a value that this version can't carry
        send(api.key, version, request)
        if chance.random() < 0.5:
            driver.node.flush(driver.now)
        if chance.random() < 0.05:
            driver.pass_time(chance.choice([10, 1_000, 20_000]))
        if chance.random() < 0.01:
            driver.node.flush(driver.now)
            driver.crash(chance)
            awaiting.clear()
        for name in ("t", "u"):
            if driver.node.topics.get(name) is None:
                driver.node.flush(driver.now)
                driver.create_topic(name)
    await_answers(driver, awaiting)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda s: f"seed-{s}")
def test_random_requests_are_answered_once(seed):
    run(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SEEDS, ids=lambda s: f"seed-{s}")
def test_more_random_requests_are_answered_once(seed):
    run(seed)
