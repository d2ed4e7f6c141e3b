"""Connections cut at any byte, and calls that are interrupted: the end is always the same."""

import random
import signal
import threading
import time
from contextlib import suppress

import pytest

from dualwrite import InvalidTxnState, TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.failures import AbortableError
from dualwrite.pytest_plugin import read_topic
from dualwrite.wire.api_keys import ApiKey
from tests.faults.proxy import Cut, FaultProxy, Once, Slow


@pytest.fixture(scope="module")
def proxied():
    """A broker whose clients all come through the proxy, because it is what metadata names."""
    with FaultProxy() as proxy:
        address = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with Broker(settings={"advertised.listeners": address}) as broker:
            proxy.target = ("127.0.0.1", broker.port)
            yield proxy


def start(proxied, name, keep=False):
    producer = TwoPhaseProducer(
        {
            "bootstrap.servers": f"127.0.0.1:{proxied.port}",
            "transactional.id": name,
            "transaction.two.phase.commit.enable": True,
            "retry.backoff.ms": 10,
        }
    )
    producer.init_transactions(keep_prepared_txn=keep, timeout=30)
    return producer


APIS = [
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.METADATA,
    ApiKey.PRODUCE,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
    ApiKey.API_VERSIONS,
]


@pytest.mark.parametrize("api_key", APIS, ids=lambda key: key.name)
@pytest.mark.parametrize("response", [False, True], ids=["request", "response"])
@pytest.mark.parametrize("after_bytes", [0, 9])
def test_a_connection_that_is_cut_once(proxied, name, api_key, response, after_bytes):
    proxied.plan = plan = Once(api_key, Cut(after_bytes), response=response)
    with start(proxied, name) as producer:
        for number in range(2):
            producer.begin_transaction()
            producer.produce(name, b"%d" % number, partition=0)
            producer.send_offsets_to_transaction({(name, 0): number}, "group-" + name)
            state = producer.prepare_transaction()
            assert producer.complete_transaction(state) == "committed"

    assert plan.happened.is_set()
    found = [m.value() for m in read_topic(name, f"127.0.0.1:{proxied.port}")]
    assert found == [b"0", b"1"]


def test_a_slow_network(proxied, name):
    proxied.plan = Slow(0.001, slice_bytes=7)
    with start(proxied, name) as producer:
        producer.begin_transaction()
        for number in range(20):
            producer.produce(name, b"%d" % number, partition=0)
        producer.commit_transaction()
    proxied.plan = Slow(0)

    found = [m.value() for m in read_topic(name, f"127.0.0.1:{proxied.port}")]
    assert found == [b"%d" % number for number in range(20)]


class Interrupts:
    """Sends signals to the main thread at random moments, which raise while `armed`."""

    def __init__(self, seed):
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._main = threading.main_thread().ident
        self.armed = False
        self.count = 0

    def _raise(self, *_):
        if self.armed:
            self.armed = False
            self.count += 1
            raise KeyboardInterrupt

    def _send(self):
        while not self._stop.wait(self._chance.uniform(0.0001, 0.004)):
            signal.pthread_kill(self._main, signal.SIGUSR1)

    def __enter__(self):
        self._before = signal.signal(signal.SIGUSR1, self._raise)
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.armed = False
        self._stop.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)


def end(producer, interrupts):
    """Commit, come what may; what was interrupted before its end is aborted."""
    while True:
        try:
            interrupts.armed = True
            producer.commit_transaction()
        except KeyboardInterrupt:
            continue
        except AbortableError:
            interrupts.armed = False
            producer.abort_transaction()
            return False
        except InvalidTxnState:
            interrupts.armed = False  # done, but interrupted before it could say so
            return True
        finally:
            interrupts.armed = False
        return True


# A socket that an interrupt has taken from our hands is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(2))
def test_interrupted_calls_leave_a_producer_that_can_go_on(servers, config, name, seed):
    expected = []
    with TwoPhaseProducer(config) as producer, Interrupts(seed) as interrupts:
        producer.init_transactions(timeout=30)
        started = time.monotonic()
        number = 0
        while interrupts.count < 20 and time.monotonic() - started < 10:
            number += 1
            producer.begin_transaction()
            written = []
            with suppress(KeyboardInterrupt, AbortableError):
                for part in range(50):
                    value = b"%d-%d" % (number, part)
                    interrupts.armed = True
                    producer.produce(name, value, partition=0)
                    interrupts.armed = False
                    written.append(value)
            interrupts.armed = False
            if end(producer, interrupts):
                expected += written

    assert interrupts.count
    assert [m.value() for m in read_topic(name, servers)] == expected
