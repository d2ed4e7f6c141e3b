"""A web service that writes to a database and to Kafka in each request.

    pip install -e '.[async]' fastapi uvicorn
    DUALWRITE_BOOTSTRAP_SERVERS=127.0.0.1:9092 DATABASE_URL=sqlite:///orders.db \\
        uvicorn --app-dir examples fastapi_app:app

The writer opens with the application, which recovers what an earlier run left in doubt, and
`/healthz` is ready only then. A dual write that may be run again is, up to five times.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from dualwrite import AsyncDualWriter, OutcomeUnknown
from dualwrite.adapters.sql import SqlStore


class Order(BaseModel):
    id: int
    item: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # In production the tables come from a migration: `dualwrite schema print --store URL`.
    url = os.environ["DATABASE_URL"]
    tables = SqlStore(url, create=True)
    with tables.engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item VARCHAR(100))")
        )
    tables.close()
    config = {"bootstrap.servers": os.environ["DUALWRITE_BOOTSTRAP_SERVERS"]}
    async with AsyncDualWriter(config, store=SqlStore(url), app="orders") as writer:
        app.state.writer = writer
        yield


app = FastAPI(lifespan=lifespan)


def the_writer(request: Request) -> AsyncDualWriter:
    writer: AsyncDualWriter = request.app.state.writer
    return writer


Writer = Annotated[AsyncDualWriter, Depends(the_writer)]


@app.post("/orders", status_code=201)
async def place(order: Order, writer: Writer) -> dict[str, str]:
    async def both(tx):
        await tx.session.execute(
            text("INSERT INTO orders VALUES (:id, :item)"), {"id": order.id, "item": order.item}
        )
        tx.produce("orders", key=str(order.id), value=order.model_dump_json())
        return tx

    try:
        tx = await writer.run(both)
    except IntegrityError as error:
        raise HTTPException(409, "there is an order of this id") from error
    except OutcomeUnknown as error:
        # It may have happened: the client must ask, not send it again.
        raise HTTPException(202, "accepted, the outcome is not known yet") from error
    return {"database": tx.outcome.database, "kafka": tx.outcome.kafka}


@app.get("/healthz")
async def healthz(writer: Writer) -> dict[str, str]:
    if not writer.is_open:
        raise HTTPException(503, "recovery is not done")
    return {"mode": writer.mode}
