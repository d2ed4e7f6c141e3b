"""KIP-939's own recipe with RocksDB: data and state in one synced WriteBatch.

    pip install -e '.[rocksdb]'
    python examples/bare_rocksdb.py

The first order is written as usual. The second writer stops after the batch is durable, before it
has told Kafka; the third stops before the batch is written. Recovery follows what RocksDB says.
"""

import tempfile

from reading import committed_keys

from dualwrite import TwoPhaseProducer
from dualwrite.adapters.rocksdb import RocksDbStore
from dualwrite.broker import Broker

TRANSACTIONAL_ID = "orders-0"


def producer_for(servers: str) -> TwoPhaseProducer:
    return TwoPhaseProducer(
        {
            "bootstrap.servers": servers,
            "transactional.id": TRANSACTIONAL_ID,
            "transaction.two.phase.commit.enable": True,
        }
    )


def recover(producer: TwoPhaseProducer, store: RocksDbStore) -> tuple[int, str]:
    fence = store.claim(TRANSACTIONAL_ID).fence
    producer.init_transactions(keep_prepared_txn=True)
    state = store.recall(TRANSACTIONAL_ID, fence)  # read again: decide only from this read
    return fence, producer.complete_transaction(state)


def write_order(producer, store, fence, order, stop_after="") -> None:
    """One order into both. `stop_after` leaves as a crash at that point would."""
    transaction = store.begin()
    transaction.batch.put(f"order/{order}", "created")
    producer.begin_transaction()
    producer.produce("orders", key=order.encode(), value=b"created")
    state = producer.prepare_transaction()
    store.remember(transaction.handle, TRANSACTIONAL_ID, state, fence)
    if stop_after == "prepare":
        return
    transaction.commit()  # the decision
    if stop_after == "commit":
        return
    producer.complete_transaction(state)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        store = RocksDbStore(f"{folder}/orders")
        for order, stop_after in (("first", ""), ("second", "commit"), ("third", "prepare")):
            producer = producer_for(broker.bootstrap_servers)
            fence, outcome = recover(producer, store)
            print(f"recovery before {order}: {outcome}")
            write_order(producer, store, fence, order, stop_after)
            producer.close()

        producer = producer_for(broker.bootstrap_servers)
        _, outcome = recover(producer, store)
        print(f"recovery at the end: {outcome}")
        producer.close()
        rows = [key.removeprefix("order/") for key, _ in store.db.items()]
        print("rows:   ", sorted(rows))
        print("records:", sorted(committed_keys(broker.bootstrap_servers)))
        store.close()


if __name__ == "__main__":
    main()
