"""`dualwrite demo`: kill a writer at its worst moments, and see that both sides agree."""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dualwrite.cli.demo_writer import APP, TOPIC

if TYPE_CHECKING:
    from sqlalchemy import Engine

DIFFERS: Final = 1
READ_SECONDS_MAX: Final = 20.0


def attach(app: typer.Typer) -> None:
    app.command("demo")(demo)


@dataclass
class Scene:
    """One life of the writer, and what it left."""

    title: str
    fate: str
    rows: list[int] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    in_doubt: str = ""
    write_ms: list[float] = field(default_factory=list)
    open_ms: float = 0.0
    recovery: str = ""
    """What the next writer's recovery did with the order that was in doubt."""

    @property
    def agree(self) -> bool:
        return self.rows == self.records


def demo(
    orders: Annotated[int, typer.Option(min=3, help="Orders to write in all.")] = 60,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write to SQLite and the bundled broker, kill the writer twice, recover, compare."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="dualwrite-demo-") as folder:
        scenes = _play(Path(folder), orders, is_quiet=json_)
    seconds = time.perf_counter() - started
    missing = sorted(set(range(1, orders + 1)) - set(scenes[-1].rows))
    agree = (
        scenes[-1].agree
        and [bool(scene.in_doubt) for scene in scenes] == [True, True, False]
        and missing == [_second_stop(orders)]
    )
    if json_:
        report = {"agree": agree, "seconds": seconds, "scenes": [asdict(s) for s in scenes]}
        typer.echo(json.dumps(report))
    else:
        _show(scenes, seconds, agree, missing)
    raise typer.Exit(0 if agree else DIFFERS)


def _first_stop(orders: int) -> int:
    return max(1, orders // 3)


def _second_stop(orders: int) -> int:
    return max(2, 2 * orders // 3)


def _play(folder: Path, orders: int, *, is_quiet: bool) -> list[Scene]:
    from sqlalchemy import create_engine, text

    from dualwrite.adapters.sql import SqlStore
    from dualwrite.broker import Broker

    url = f"sqlite:///{folder / 'orders.db'}"
    engine = create_engine(url)
    SqlStore(engine, create=True)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"))
    first, second = _first_stop(orders), _second_stop(orders)
    lives = [
        (1, first, "committed", "after DB commit"),
        (first + 1, second, "remembered", "before DB commit"),
        (second + 1, orders, "", ""),
    ]
    scenes: list[Scene] = []
    with Broker(data_dir=folder / "broker") as broker, _progress(orders, is_quiet) as advance:
        for start, last, step, moment in lives:
            scene = Scene(f"{start}-{last}", moment or "never")
            _live(broker.bootstrap_servers, url, start, last, step, scene, advance)
            _look(broker.bootstrap_servers, engine, scene)
            scenes.append(scene)
    for scene, order in zip(scenes, (first, second), strict=False):
        scene.recovery = "committed" if order in scenes[-1].records else "aborted"
    engine.dispose()
    return scenes


def _live(
    bootstrap: str,
    url: str,
    first: int,
    last: int,
    step: str,
    scene: Scene,
    advance: Callable[[], None],
) -> None:
    """Run the writer as a process of its own, and SIGKILL it where it stops."""
    from dualwrite.broker.broker_process import import_path, python_module

    command = python_module("dualwrite.cli.demo_writer")
    command += [bootstrap, url, str(first), str(last), *([step] if step else [])]
    environment = os.environ | import_path()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                report = json.loads(line)
                if report["event"] == "stopped":
                    process.kill()
                    break
                if report["event"] == "open":
                    scene.open_ms = report["seconds"] * 1000
                    continue
                scene.write_ms.append(report["seconds"] * 1000)
                advance()
            process.wait()
        except BaseException:
            process.kill()  # the demo is interrupted, and nobody else would end it
            raise
    if not step and process.returncode != 0:
        raise RuntimeError(f"the writer failed with exit code {process.returncode}")


def _look(bootstrap: str, engine: "Engine", scene: Scene) -> None:
    """What a reader of either side sees at this moment."""
    from sqlalchemy import text

    from dualwrite import TransactionAdmin

    with engine.connect() as connection:
        found = connection.execute(text("SELECT id FROM orders ORDER BY id"))
        scene.rows = [row[0] for row in found]
    scene.records = sorted(_read_committed(bootstrap, TOPIC))
    with TransactionAdmin({"bootstrap.servers": bootstrap}) as admin:
        listed = admin.list_transactions(["Ongoing"], id_pattern=f"^{APP}-[0-9]+$")
    scene.in_doubt = ", ".join(entry.transactional_id for entry in listed)


def _read_committed(bootstrap: str, topic: str) -> Iterator[int]:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        known = consumer.list_topics(topic, timeout=READ_SECONDS_MAX).topics[topic]
        left = set(known.partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        while left:
            message = consumer.poll(READ_SECONDS_MAX)
            if message is None:
                raise TimeoutError(f"topic {topic} could not be read to its end")
            error = message.error()
            if error is None:
                yield int(message.key())
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
    finally:
        consumer.close()


@contextmanager
def _progress(orders: int, is_quiet: bool) -> Iterator[Callable[[], None]]:
    if is_quiet:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as progress:
        task = progress.add_task("writing orders to SQLite and Kafka", total=orders - 1)
        yield lambda: progress.advance(task)


def _show(scenes: list[Scene], seconds: float, agree: bool, missing: list[int]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title="One writer, killed twice with SIGKILL", box=box.SIMPLE)
    for name in ("orders", "killed", "rows", "records", "in doubt", "open", "write"):
        table.add_column(name, justify="left" if name in ("orders", "killed") else "right")
    for scene in scenes:
        table.add_row(*_cells(scene))
    console = Console()
    console.print(table)
    console.print(
        "rows: in the database at that moment; records: visible to read_committed;\n"
        "in doubt: how the next writer ended the order of the kill, on opening;\n"
        "open: until the writer was ready, recovery included; write: median of one order;\n"
        f"orders on neither side: {missing}"
    )
    verdict = "[green]both sides agree[/green]" if agree else "[red]the sides differ[/red]"
    console.print(f"{verdict} ({len(scenes[-1].rows)} orders, {seconds:.1f} s)")


def _cells(scene: Scene) -> list[Any]:
    times = scene.write_ms
    median = f"{statistics.median(times):.1f} ms" if times else "-"
    return [
        scene.title,
        scene.fate,
        str(len(scene.rows)),
        str(len(scene.records)),
        scene.recovery or "no",
        f"{scene.open_ms:.0f} ms",
        median,
    ]
