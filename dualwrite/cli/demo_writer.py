"""The process that `dualwrite demo` kills: it writes orders to both sides and reports each one.

    python -m dualwrite.cli.demo_writer BOOTSTRAP URL FIRST LAST [STEP]

Reports are JSON lines on stdout. With STEP it stops at that step of order LAST and waits to be
killed.
"""

import json
import sys
import time

APP = "demo"
TOPIC = "orders"


def main(bootstrap: str, url: str, first: int, last: int, step: str) -> None:
    from sqlalchemy import create_engine, text

    from dualwrite import DualWriter
    from dualwrite.adapters.sql import SqlStore

    current = 0

    def on_step(name: str) -> None:
        if name == step and current == last:
            report(event="stopped", id=current)
            sys.stdin.read()

    started = time.perf_counter()
    engine = create_engine(url)
    writer = DualWriter(
        {"bootstrap.servers": bootstrap}, store=SqlStore(engine), app=APP, slots=1, on_step=on_step
    )
    with writer:
        report(event="open", seconds=time.perf_counter() - started)
        for current in range(first, last + 1):
            started = time.perf_counter()
            with writer.transaction() as tx:
                insert = text("INSERT INTO orders (id, item) VALUES (:id, :item)")
                tx.session.execute(insert, {"id": current, "item": f"item {current}"})
                tx.produce(TOPIC, key=str(current), value=json.dumps({"order": current}))
            report(event="order", id=current, seconds=time.perf_counter() - started)
    engine.dispose()


def report(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
        sys.argv[5] if len(sys.argv) > 5 else "",
    )
