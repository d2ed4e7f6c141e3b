"""Our producer beside confluent-kafka, against the same broker process and the same disk.

    python -m tests.bench.producer [--messages 200000] [--transactions 500] [--bytes 100]

Prints ratios: messages per second to confluent-kafka's, and the time of a transaction to the
fdatasync of the same disk, with their goals. Figures of different runs must not be compared.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from dualwrite import AsyncTwoPhaseProducer, TwoPhaseProducer
from dualwrite.broker import BrokerProcess

ROUNDS = 5
GOALS = {"ours_to_confluent": ">= 1", "transaction_p50_to_fdatasync": "<= 4"}


def percentiles(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "p50_ms": round(ordered[len(ordered) // 2] * 1000, 3),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 3),
    }


def timed(repeat: int, action: Callable[[], object]) -> list[float]:
    samples = []
    for _ in range(repeat):
        started = time.perf_counter()
        action()
        samples.append(time.perf_counter() - started)
    return samples


def fdatasync(folder: str, repeat: int) -> list[float]:
    """The floor: 4 KiB into a file that already has its blocks, as the journal does."""
    with tempfile.TemporaryFile(dir=folder) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, bytes(4096 * repeat), 0)
        os.fsync(descriptor)
        place = iter(range(0, 4096 * repeat, 4096))

        def write() -> None:
            os.pwrite(descriptor, b"x" * 4096, next(place))
            os.fdatasync(descriptor)

        return timed(repeat, write)


def ours(servers: str, **settings: Any) -> TwoPhaseProducer:
    producer = TwoPhaseProducer(
        {"bootstrap.servers": servers, "transactional.id": f"bench-{time.time_ns()}", **settings}
    )
    producer.init_transactions(timeout=30)
    return producer


def produce_ours(servers: str, messages: int, value: bytes) -> float:
    with ours(servers) as producer:
        started = time.perf_counter()
        producer.begin_transaction()
        for _ in range(messages):
            try:
                producer.produce("bench", value)
            except BufferError:
                producer.poll(1)
                producer.produce("bench", value)
        producer.commit_transaction()
        return messages / (time.perf_counter() - started)


def produce_rows(servers: str, messages: int, value: bytes) -> float:
    with ours(servers) as producer:
        started = time.perf_counter()
        producer.begin_transaction()
        producer.produce_batch("bench", ((None, value, None, 0) for _ in range(messages)))
        producer.commit_transaction()
        return messages / (time.perf_counter() - started)


def produce_confluent(servers: str, messages: int, value: bytes) -> float:
    producer = Producer(
        {"bootstrap.servers": servers, "transactional.id": f"confluent-{time.time_ns()}"}
    )
    producer.init_transactions(30)
    started = time.perf_counter()
    producer.begin_transaction()
    for _ in range(messages):
        try:
            producer.produce("bench", value)
        except BufferError:
            producer.poll(1)
            producer.produce("bench", value)
    producer.commit_transaction(60)
    return messages / (time.perf_counter() - started)


def transactions_ours(servers: str, repeat: int, value: bytes) -> list[float]:
    with ours(servers) as producer:

        def once() -> None:
            producer.begin_transaction()
            producer.produce("bench", value, partition=0)
            producer.commit_transaction()

        timed(20, once)
        return timed(repeat, once)


def transactions_confluent(servers: str, repeat: int, value: bytes) -> list[float]:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": f"confluent-{time.time_ns()}",
            "linger.ms": 0,
        }
    )
    producer.init_transactions(30)

    def once() -> None:
        producer.begin_transaction()
        producer.produce("bench", value, partition=0)
        producer.commit_transaction(30)

    timed(20, once)
    return timed(repeat, once)


async def transactions_async(servers: str, repeat: int, value: bytes) -> list[float]:
    samples = []
    async with AsyncTwoPhaseProducer(
        {"bootstrap.servers": servers, "transactional.id": f"bench-{time.time_ns()}"}
    ) as producer:
        await producer.init_transactions(timeout=30)
        for _ in range(repeat):
            started = time.perf_counter()
            await producer.begin_transaction()
            await producer.produce("bench", value, partition=0)
            await producer.commit_transaction()
            samples.append(time.perf_counter() - started)
    return samples


def measure(servers: str, folder: str, messages: int, repeat: int, value: bytes) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"ours": [], "rows": [], "confluent": []}
    for _ in range(ROUNDS):
        rates["ours"].append(produce_ours(servers, messages, value))
        rates["rows"].append(produce_rows(servers, messages, value))
        rates["confluent"].append(produce_confluent(servers, messages, value))
    best = {name: round(max(found)) for name, found in rates.items()}
    # In turns, so that whatever else the machine does meets all of them.
    samples: dict[str, list[float]] = {"fdatasync": [], "ours": [], "async": [], "confluent": []}
    for _ in range(ROUNDS):
        part = repeat // ROUNDS
        samples["fdatasync"] += fdatasync(folder, part)
        samples["ours"] += transactions_ours(servers, part, value)
        samples["confluent"] += transactions_confluent(servers, part, value)
        samples["async"] += asyncio.run(transactions_async(servers, part, value))
    floor, ours_p50 = (statistics.median(samples[name]) for name in ("fdatasync", "ours"))
    return {
        "messages_per_second": best,
        "ours_to_confluent": round(best["ours"] / best["confluent"], 2),
        "rows_to_confluent": round(best["rows"] / best["confluent"], 2),
        "transactions": {name: percentiles(found) for name, found in samples.items()},
        "transaction_p50_to_fdatasync": round(ours_p50 / floor, 2),
        "transaction_p50_to_confluent": round(
            ours_p50 / statistics.median(samples["confluent"]), 2
        ),
        "goals": GOALS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--transactions", type=int, default=500)
    parser.add_argument("--bytes", type=int, default=100)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="dualwrite-bench-") as folder,
        BrokerProcess(data_dir=os.path.join(folder, "data")) as broker,
    ):
        found = measure(
            broker.bootstrap_servers,
            folder,
            options.messages,
            options.transactions,
            os.urandom(options.bytes),
        )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
