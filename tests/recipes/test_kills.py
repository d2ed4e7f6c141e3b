"""Recipes whose processes and whose broker are killed at random moments: everything happens once.

The last messages come after the last kill and behind all others of their partition. When they have had
their effect, whatever was to be repeated has been.
"""

import random
import signal
import uuid
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.recovery import recover
from tests.dualwrite.waiting import wait_until
from tests.dualwrite.world import read_committed
from tests.recipes.workers import (
    FORKS,
    Place,
    act_once,
    consume_to_database,
    die_behind_a_commit,
    transform_and_produce,
)

PARTITIONS = 4
WORKERS = ("first", "second")
KILLS = 10
BROKER_KILLS = 3
MESSAGES = 40
"""For every kill."""
DEADLINE_SECONDS = 120


class Campaign:
    """One recipe at work, and what is done to it."""

    def __init__(self, recipe, broker, url, seed, *, copies=1):
        self.place = Place(broker.bootstrap_servers, url, "k" + uuid.uuid4().hex[:8])
        self.engine = self.place.engine()
        self.sent = 0
        self._recipe = recipe
        self._broker = broker
        self._copies = copies
        self._random = random.Random(seed)
        self._processes = {}

    def __enter__(self):
        self.place.create(self.engine)
        config = {"bootstrap.servers": self.place.bootstrap, "log_level": 0}
        admin = AdminClient(config)
        topics = [NewTopic(self.place.source, PARTITIONS), NewTopic(self.place.output, 1)]
        for created in admin.create_topics(topics).values():
            created.result(20)
        config |= {"enable.idempotence": True, "reconnect.backoff.max.ms": 200}
        self._producer = Producer(config)
        self._send(MESSAGES)
        for worker in WORKERS:
            self._start(worker)
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            process.kill()
            process.join()
        self.engine.dispose()

    def run(self, kills):
        """Kill, then let everything be done, and kill all."""
        broker_kills = kills * BROKER_KILLS // KILLS
        victims = ["broker"] * broker_kills + ["worker"] * (kills - broker_kills)
        self._random.shuffle(victims)
        self._kill_behind_a_commit()
        for victim in victims:
            self._send(MESSAGES)
            self._kill(victim)
        before_last = self.sent
        self._copies = 1
        self._send(PARTITIONS)
        last = set(range(before_last, self.sent))
        wait_until(lambda: last <= set(self.place.effects(self.engine)), DEADLINE_SECONDS)
        for process in self._processes.values():
            end(process)

    def _kill(self, victim):
        worker = self._random.choice(WORKERS)
        process = self._processes[worker]
        if self._random.random() < 0.7:  # at work; else perhaps while it starts
            done = len(self.place.effects(self.engine, worker))
            wait_until(lambda: self._count_after_more(worker) > done, DEADLINE_SECONDS)
        process.join(self._random.uniform(0, 0.1))  # it does not end: this takes the time drawn
        if victim == "broker":
            self._broker.kill()
            self._broker.restart()
        else:
            end(process)
            self._start(worker)

    def _kill_behind_a_commit(self):
        """Chance alone seldom strikes between a COMMIT and what follows it."""
        worker = self._random.choice(WORKERS)
        end(self._processes[worker])
        process = self._start(worker, partial(die_behind_a_commit, self._recipe))
        wait_until(lambda: self._is_over_after_more(process), DEADLINE_SECONDS)
        assert process.exitcode == -signal.SIGKILL
        self._start(worker)

    def _is_over_after_more(self, process):
        self._send(PARTITIONS)
        return process.exitcode is not None

    def _count_after_more(self, worker):
        """What the worker has done; it gets something to do, whatever the others took."""
        self._send(PARTITIONS)
        return len(self.place.effects(self.engine, worker))

    def _start(self, worker, role=None):
        role = role or self._recipe
        process = FORKS.Process(target=role, args=(self.place, worker), daemon=True)
        process.start()
        self._processes[worker] = process
        return process

    def _send(self, count):
        """Each number as often as there are copies, in partitions of their own."""
        for number in range(self.sent, self.sent + count):
            for copy in range(self._copies):
                self._producer.produce(
                    self.place.source,
                    key=str(number),
                    value=b"x",
                    partition=(number + copy) % PARTITIONS,
                    headers={"message-id": str(number)},
                )
        assert self._producer.flush(60) == 0
        self.sent += count


def end(process):
    """SIGKILL, which nothing but we may have sent."""
    assert process.exitcode is None, "it has ended by itself: see its traceback"
    process.kill()
    process.join()


@pytest.fixture
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'effects.db'}"
    return request.getfixturevalue("postgres_url")


def run_to_database(broker, url, seed, kills):
    with Campaign(consume_to_database, broker, url, seed) as campaign:
        campaign.run(kills)

        assert campaign.place.effects(campaign.engine) == list(range(campaign.sent))


def run_transform(broker, url, seed, kills):
    with Campaign(transform_and_produce, broker, url, seed) as campaign:
        campaign.run(kills)
        place = campaign.place
        config = {"bootstrap.servers": place.bootstrap}
        recover(config, store=place.store(campaign.engine), app=place.name)

        assert place.effects(campaign.engine) == list(range(campaign.sent))
        records = read_committed(place.bootstrap, place.output)
        assert sorted(int(key) for key, _ in records) == list(range(campaign.sent))


def run_idempotent(broker, url, seed, kills):
    """Producers send everything twice, and both copies may be read at the same moment."""
    with Campaign(act_once, broker, url, seed, copies=2) as campaign:
        campaign.run(kills)

        assert campaign.place.effects(campaign.engine) == list(range(campaign.sent))


RUNS = {
    "consume to database": run_to_database,
    "consume, transform, produce": run_transform,
    "idempotent consumer": run_idempotent,
}


@pytest.mark.parametrize(
    ("run", "url"),
    [
        ("consume to database", "sqlite"),
        ("consume, transform, produce", "postgresql"),
        ("idempotent consumer", "postgresql"),
    ],
    indirect=["url"],
)
def test_everything_happens_once(broker_process, url, seed, run):
    RUNS[run](broker_process, url, seed, KILLS)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("run", RUNS)
def test_everything_happens_once_after_many_kills(broker_process, url, seed, run):
    RUNS[run](broker_process, url, seed, 100)
