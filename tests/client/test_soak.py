"""Several producers, a broker that keeps dying and clients that vanish: decisions and records agree."""

import random
import threading

import pytest

from dualwrite import PreparedTxnState, TwoPhaseProducer
from dualwrite.broker import BrokerProcess
from dualwrite.failures import AbortableError, KafkaTimeout
from dualwrite.pytest_plugin import read_topic

WRITERS = 3
TRANSACTIONS = 25


class Writer(threading.Thread):
    """Plays the application with its database: `decided` is what a crash does not take away."""

    def __init__(self, servers, number, seed):
        super().__init__()
        self._config = {
            "bootstrap.servers": servers,
            "transactional.id": f"soak-{number}",
            "transaction.two.phase.commit.enable": True,
            "retry.backoff.ms": 20,
        }
        self._number = number
        self._chance = random.Random(seed * 100 + number)
        self._producer = None
        self._remembered = ""  # the state row
        self.decided = []
        self.failure = None

    def run(self):
        try:
            for number in range(TRANSACTIONS):
                self._transaction(number)
            self._recovered()._flows.states.require("begin_transaction")
        except Exception as error:  # noqa: BLE001  # reported by the test
            self.failure = error
        finally:
            if self._producer is not None:
                self._producer.close()

    def _transaction(self, number):
        producer = self._recovered()
        values = [
            b"%d-%d-%d" % (self._number, number, i) for i in range(self._chance.randrange(1, 30))
        ]
        try:
            producer.begin_transaction()
            for value in values:
                producer.produce("soak", value, partition=self._number)
            state = producer.prepare_transaction(timeout=30)
        except (KafkaTimeout, AbortableError):
            return self._vanish()
        if self._chance.random() < 0.2:
            return self._vanish()  # before the decision
        if self._chance.random() < 0.1:
            producer.abort_transaction(timeout=30)
            return None
        self._remembered = str(state)
        self.decided += values
        if self._chance.random() < 0.3:
            return self._vanish()  # after the decision
        assert producer.complete_transaction(state, timeout=30) == "committed"
        return None

    def _vanish(self):
        """As a process that is killed: nothing is said to the broker."""
        self._producer._driver.close()
        self._producer._flows.states.close()
        self._producer = None

    def _recovered(self):
        if self._producer is None:
            self._producer = TwoPhaseProducer(self._config)
            self._producer.init_transactions(keep_prepared_txn=True, timeout=30)
            self._producer.complete_transaction(
                PreparedTxnState.parse(self._remembered), timeout=30
            )
        return self._producer


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))]


@pytest.mark.parametrize("seed", SEEDS)
def test_decisions_and_records_agree(seed):
    chance = random.Random(seed)
    with BrokerProcess(num_partitions=WRITERS) as broker:
        writers = [Writer(broker.bootstrap_servers, number, seed) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        while alive := [writer for writer in writers if writer.is_alive()]:
            alive[0].join(chance.uniform(0.3, 1.5))
            broker.kill()
            broker.restart()
        found = {n: [] for n in range(WRITERS)}
        for message in read_topic("soak", broker.bootstrap_servers):
            found[message.partition()].append(message.value())

    assert [writer.failure for writer in writers] == [None] * WRITERS
    assert found == {n: writer.decided for n, writer in enumerate(writers)}
