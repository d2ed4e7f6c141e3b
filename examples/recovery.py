"""A writer is killed between its two commits; recovery carries Kafka to the database's decision.

    python examples/recovery.py

The writer is a process of its own, ended by SIGKILL. `recover` then does what any writer of the same
app would do on opening.
"""

import os
import signal
import subprocess
import sys
import tempfile

from reading import committed_keys
from sqlalchemy import create_engine, text

from dualwrite import DualWriter
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker
from dualwrite.recipes.recovery import recover


def write_and_die(servers: str, url: str, step: str, order: str) -> None:
    """Place an order, and be killed at a step of it."""

    def on_step(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    config = {"bootstrap.servers": servers}
    store = SqlStore(create_engine(url))
    dw = DualWriter(config, store=store, app="orders", slots=1, on_step=on_step)
    with dw, dw.transaction() as tx:
        tx.session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order})
        tx.produce("orders", key=order, value="created")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        servers, url = broker.bootstrap_servers, f"sqlite:///{folder}/orders.db"
        engine = create_engine(url)
        store = SqlStore(engine, create=True)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id TEXT PRIMARY KEY)"))
        for step, order in (("committed", "decided"), ("remembered", "undecided")):
            child = [sys.executable, __file__, servers, url, step, order]
            print(f"writer of {order}: exit code {subprocess.run(child, check=False).returncode}")
            ended = recover({"bootstrap.servers": servers}, store=store, app="orders")
            print(f"recovery of {order}:", ", ".join(each.verdict for each in ended))
        with engine.connect() as connection:
            rows = [row[0] for row in connection.execute(text("SELECT id FROM orders"))]
        print("rows:", sorted(rows))
        print("records:", sorted(committed_keys(servers)))
        engine.dispose()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_and_die(*sys.argv[1:])
    else:
        main()
