"""A broker for the suite, and requests in the words of the tests."""

import itertools
import os
import time

import pytest

from dualwrite.broker import Broker
from dualwrite.wire.records import build_batch
from tests.conformance.raw import Raw

TOPIC = "topic"
ELSEWHERE = os.environ.get("DUALWRITE_CONFORMANCE_BOOTSTRAP")
_numbers = itertools.count()


CONCURRENT_TRANSACTIONS = 51


def settled(ask):
    """Ask again while the broker is still completing the transaction before, as every client does.

    Ours completes in one step and never answers so; Apache Kafka does.
    """
    for _ in range(500):
        answer = ask()
        if CONCURRENT_TRANSACTIONS not in answer[0]:
            return answer[1]
        time.sleep(0.01)
    raise AssertionError("the transaction before never completed")


class Talk:
    """Requests of one transactional id over one connection."""

    def __init__(self, raw: Raw, transactional_id: str) -> None:
        self.raw = raw
        self.id = transactional_id

    def init(self, version=5, *, timeout=60_000, pair=(-1, -1), id=..., **flags):
        def ask():
            answer = self.raw.ask(
                22, version, transactional_id=self.id if id is ... else id,
                transaction_timeout=timeout, transaction_timeout_ms=timeout,
                producer_id=pair[0], producer_epoch=pair[1], **flags,
            )  # fmt: skip
            return {answer["error_code"]}, answer

        return settled(ask)

    def begin(self, version=5):
        """A fresh pair."""
        answer = self.init(version)
        assert answer["error_code"] == 0
        return answer["producer_id"], answer["producer_epoch"]

    def add_partitions(self, pair, version, topics=((TOPIC, 0),), id=None):
        named = [{"name": name, "partitions": [partition]} for name, partition in topics]
        identity = self.id if id is None else id

        def ask():
            answer = self.raw.ask(
                24, version,
                v3_and_below_transactional_id=identity, v3_and_below_producer_id=pair[0],
                v3_and_below_producer_epoch=pair[1], v3_and_below_topics=named,
            )  # fmt: skip
            results = answer["results_by_topic_v3_and_below"]
            codes = {
                t["name"]: p["partition_error_code"]
                for t in results
                for p in t["results_by_partition"]
            }
            return set(codes.values()), [codes[name] for name, _ in topics]

        return settled(ask)

    def add_offsets(self, pair, version, group="group", id=None):
        return self.raw.ask(
            25, version, transactional_id=id or self.id, producer_id=pair[0],
            producer_epoch=pair[1], group_id=group,
        )["error_code"]  # fmt: skip

    def end(self, pair, version, *, commit, id=None):
        def ask():
            answer = self.raw.ask(
                26, version, transactional_id=id or self.id, producer_id=pair[0],
                producer_epoch=pair[1], committed=commit,
            )  # fmt: skip
            after = (answer.get("producer_id"), answer.get("producer_epoch"))
            return {answer["error_code"]}, (answer["error_code"], after)

        return settled(ask)

    def produce(self, pair, version, *, sequence=0, id=...):
        batch = build_batch(
            [(None, b"x", None, 0)], producer_id=pair[0], producer_epoch=pair[1],
            base_sequence=sequence, is_transactional=True,
        )  # fmt: skip
        answer = self.raw.ask(
            0, version, transactional_id=self.id if id is ... else id, acks=-1, timeout=5000,
            topic_data=[
                {"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}
            ],
        )  # fmt: skip
        return answer["responses"][0]["partition_responses"][0]["error_code"]

    def commit_offsets(self, pair, version, group="group", **member):
        partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        answer = self.raw.ask(
            28, version, transactional_id=self.id, group_id=group, producer_id=pair[0],
            producer_epoch=pair[1], topics=[{"name": TOPIC, "partitions": [partition]}], **member,
        )  # fmt: skip
        return answer["topics"][0]["partitions"][0]["error_code"]


def create_topic(bootstrap):
    raw = Raw(bootstrap)
    raw.ask(
        19, 7, timeout=5000, timeout_ms=5000, validate_only=False,
        topics=[{"name": TOPIC, "num_partitions": 1, "replication_factor": 1,
                 "assignments": [], "configs": []}],
    )  # fmt: skip
    raw.close()


def _running(**settings):
    with Broker(settings=settings) as broker:
        create_topic(broker.bootstrap_servers)
        yield broker.bootstrap_servers


def pytest_collection_modifyitems(items):
    if ELSEWHERE:
        for item in items:
            if "two_phase" in item.keywords:
                reason = "KIP-939, or a rule of ours: no other broker has it"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def conformance_broker():
    if ELSEWHERE:
        create_topic(ELSEWHERE)
        yield ELSEWHERE
    else:
        yield from _running()


@pytest.fixture(scope="session")
def old_broker():
    """Finalized transaction.version 0: Kafka before KIP-890."""
    yield from _running(**{"transaction.version": 0})


@pytest.fixture(scope="session")
def forbidding_broker():
    yield from _running(**{"transaction.two.phase.commit.enable": "false"})


@pytest.fixture
def new_talk():
    """A connection of its own to a broker, with a transactional id that nobody has used."""
    opened = []

    def talk_to(bootstrap):
        opened.append(Raw(bootstrap))
        return Talk(opened[-1], f"id-{os.getpid()}-{next(_numbers)}")

    yield talk_to
    for raw in opened:
        raw.close()


@pytest.fixture
def talk(conformance_broker, new_talk):
    return new_talk(conformance_broker)
