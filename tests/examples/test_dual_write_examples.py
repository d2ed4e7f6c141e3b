"""The examples run as they stand, and say what their pages promise."""

import ast
import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path

import httpx

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (line.split(":", 1) for line in done.stdout.splitlines())
    return {name: value.strip() for name, value in lines}


def test_dual_write():
    said = run("dual_write.py")

    assert said["first"] == "committed, Kafka committed"
    assert said["second"] == "rolled_back, Kafka none"
    assert said["third again"] == "IntegrityError"
    assert ast.literal_eval(said["rows"]) == ["first", "third"]
    assert ast.literal_eval(said["records"]) == ["first", "third"]


def test_recovery():
    said = run("recovery.py")

    assert said["writer of decided"] == said["writer of undecided"] == "exit code -9"
    assert said["recovery of decided"] == "commit"
    assert said["recovery of undecided"] == "abort"
    assert ast.literal_eval(said["rows"]) == ["decided"]
    assert ast.literal_eval(said["records"]) == ["decided"]


def test_consume_to_database():
    said = run("consume_to_database.py")

    assert said["failed"]
    assert said["booked"] == "20 once each: True"


def test_consume_transform_produce():
    said = run("consume_transform_produce.py")

    assert ast.literal_eval(said["rows"]) == ["anna", "bela", "cleo"]
    assert ast.literal_eval(said["records"]) == ["anna", "bela", "cleo"]
    assert said["offsets committed"] == "True"


def test_idempotent_consumer():
    assert ast.literal_eval(run("idempotent_consumer.py")["paid"]) == ["power", "rent", "water"]


def test_fastapi_app(monkeypatch, sqlite_world):
    world = sqlite_world
    monkeypatch.setenv("DUALWRITE_BOOTSTRAP_SERVERS", world.bootstrap)
    monkeypatch.setenv("DATABASE_URL", world.url)
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLES / "fastapi_app.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def main():
        transport = httpx.ASGITransport(module.app)
        async with (
            module.lifespan(module.app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            assert (await client.get("/healthz")).json() == {"mode": "2pc"}
            placed = await client.post("/orders", json={"id": 1, "item": "tea"})
            assert placed.json() == {"database": "committed", "kafka": "committed"}
            again = await client.post("/orders", json={"id": 1, "item": "again"})
            assert again.status_code == 409

    asyncio.run(main())
