"""KIP-939's own recipe with ZooKeeper: data and state in one multi.

    pip install -e '.[zookeeper]'
    python examples/bare_zookeeper.py [HOST:PORT]

Needs a ZooKeeper server, by default at 127.0.0.1:2181; what it writes is removed at the end. The
first order is written as usual. The second writer stops after the multi is done, before it has
told Kafka; the third stops before the multi is sent. Recovery follows what ZooKeeper says.
"""

import sys

from kazoo.client import KazooClient
from reading import committed_keys

from dualwrite import TwoPhaseProducer
from dualwrite.adapters.zookeeper import ZooKeeperStore
from dualwrite.broker import Broker

TRANSACTIONAL_ID = "orders-0"
ROOT = "/dualwrite-example"


def producer_for(servers: str) -> TwoPhaseProducer:
    return TwoPhaseProducer(
        {
            "bootstrap.servers": servers,
            "transactional.id": TRANSACTIONAL_ID,
            "transaction.two.phase.commit.enable": True,
        }
    )


def recover(producer: TwoPhaseProducer, store: ZooKeeperStore) -> tuple[int, str]:
    fence = store.claim(TRANSACTIONAL_ID).fence
    producer.init_transactions(keep_prepared_txn=True)
    state = store.recall(TRANSACTIONAL_ID, fence)  # read again: decide only from this read
    return fence, producer.complete_transaction(state)


def write_order(producer, store, fence, order, stop_after="") -> None:
    """One order into both. `stop_after` leaves as a crash at that point would."""
    transaction = store.begin()
    transaction.multi.create(f"{ROOT}/orders/{order}", b"created")
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


def main(hosts: str) -> None:
    client = KazooClient(hosts=hosts)
    client.start()
    client.ensure_path(f"{ROOT}/orders")
    store = ZooKeeperStore(client, root=f"{ROOT}/state")
    with Broker() as broker:
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
        print("rows:   ", sorted(client.get_children(f"{ROOT}/orders")))
        print("records:", sorted(committed_keys(broker.bootstrap_servers)))
    client.delete(ROOT, recursive=True)
    client.stop()
    client.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:2181")
