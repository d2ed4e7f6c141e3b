"""The commands from outside: names, options, exit codes, what they do."""

import json
import subprocess
import sys
import uuid

import pytest
from sqlalchemy import text

from dualwrite import TwoPhaseProducer
from dualwrite.adapters.sql import SqlStore
from dualwrite.pytest_plugin import read_topic

OPERATOR = [
    *(("txn", name) for name in ("list", "describe", "explain", "resolve", "force-terminate")),
    *(("topic", name) for name in ("create", "list", "describe", "delete")),
    *(("acl", name) for name in ("add", "list", "remove")),
    ("recover",),
    ("doctor",),
    *(("schema", name) for name in ("print", "apply", "check")),
    ("bench",),
    *(("spark", name) for name in ("status", "recover", "forget")),
]


def run(*arguments):
    command = [sys.executable, "-m", "dualwrite.cli", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" not in result.stderr, result.stderr
    return result


@pytest.fixture(scope="module")
def options():
    """The options of every command, read from the commands themselves."""
    import typer

    from dualwrite.cli import build_app

    def walk(command, path=()):
        yield path, {name for p in command.params for name in p.opts}
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, (*path, name))

    return dict(walk(typer.main.get_command(build_app())))


@pytest.mark.parametrize("command", OPERATOR, ids=" ".join)
def test_options_of_every_operator_command(options, command):
    """All take the servers, a file of settings, and can print JSON."""
    assert {"--bootstrap-servers", "--command-config", "--json"} <= options[command]


def test_options_of_single_commands(options):
    """What the commands take beyond that."""
    assert "--dry-run" in options["txn", "resolve"]
    assert {"--heuristic", "--reason"} <= options["txn", "force-terminate"]
    assert {"--store", "--app"} <= options["recover",]
    assert all("--sink" in options["spark", name] for name in ("status", "recover", "forget"))
    assert {("schema", name) for name in ("print", "apply", "check")} <= set(options)
    assert {("bench",), ("demo",), ("broker",)} <= set(options)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("txn", "explain"),
        ("topic", "create"),
        ("topic", "list", "--nonsense"),
        ("recover", "--app", "a b", "--store", "sqlite://", "--bootstrap-servers", "h:1"),
        ("schema", "check", "--store", "nonsense"),
        ("spark", "status", "--sink", "a.b"),
        ("txn", "force-terminate", "x", "--heuristic", "--bootstrap-servers", "h:1"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments):
    """Wrong usage is told on stderr, with exit code 2."""
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr


def test_unreachable_broker_is_1(tmp_path):
    """A broker that does not answer is a refusal, not a traceback."""
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nmax.block.ms=300\n")
    result = run("txn", "list", "--command-config", file)
    assert result.returncode == 1
    assert result.stderr


def test_topics(tmp_path, servers):
    """Create, list, describe, delete; the file may say where the cluster is."""
    name = f"t-{uuid.uuid4().hex}"
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={servers}\n")
    to = ("--command-config", file, "--json")
    assert run("topic", "describe", name, *to).returncode == 1
    assert name not in run("topic", "list", *to).stdout
    assert run("topic", "create", name, "--partitions", 3, *to).returncode == 0
    assert run("topic", "create", name, *to).returncode == 1
    assert {"topic": name, "partitions": 3} in json.loads(run("topic", "list", *to).stdout)
    assert len(json.loads(run("topic", "describe", name, *to).stdout)) == 3
    assert run("topic", "delete", name, *to).returncode == 0
    assert run("topic", "delete", name, *to).returncode == 1


@pytest.fixture
def in_doubt(servers, engine):
    """Leave a prepared transaction behind; gives a function of (is it decided) -> its id."""
    left = []

    def leave(is_decided):
        app = f"a{uuid.uuid4().hex}"
        name = f"{app}-0"
        store = SqlStore(engine)
        claim = store.claim(name)
        with TwoPhaseProducer(
            {
                "bootstrap.servers": servers,
                "transactional.id": name,
                "transaction.two.phase.commit.enable": True,
            }
        ) as producer:
            producer.init_transactions(keep_prepared_txn=True)
            producer.begin_transaction()
            producer.produce(app, value=b"v")
            state = producer.prepare_transaction()
        if is_decided:
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO orders VALUES (1)"))
                store.remember(connection, name, state, claim.fence)
        left.append(name)
        return app

    return leave


@pytest.mark.parametrize("is_decided", [True, False])
def test_explain_and_resolve(servers, url, in_doubt, is_decided):
    """Explain and a dry run only tell; resolve does what the database says."""
    app = in_doubt(is_decided)
    verdict = "commit" if is_decided else "abort"
    to = ("--bootstrap-servers", servers, "--store", url, "--json")
    told = run("txn", "explain", f"{app}-0", *to)
    assert told.returncode == 0
    explained = json.loads(told.stdout)
    assert explained["advice"] == verdict
    assert ("the store remembers nothing," in explained["reasons"][0]) == (not is_decided)
    assert explained["partitions"][0]["last_stable_offset"] == 0
    dry = run("txn", "resolve", f"{app}-0", "--dry-run", *to)
    assert json.loads(dry.stdout)["advice"] == verdict
    assert read_topic(app, servers) == []
    done = run("txn", "resolve", f"{app}-0", *to)
    assert (done.returncode, json.loads(done.stdout)["done"]) == (0, verdict)
    assert len(read_topic(app, servers)) == int(is_decided)


def test_forced_end(servers, url, engine, in_doubt):
    """Refused against the database's word, unless the reason is given, which is written down."""
    app = in_doubt(True)
    to = ("--bootstrap-servers", servers, "--store", url)
    assert run("txn", "force-terminate", f"{app}-0", *to).returncode == 1
    forced = run("txn", "force-terminate", f"{app}-0", "--heuristic", "--reason", "a test", *to)
    assert forced.returncode == 0
    with engine.connect() as connection:
        found = connection.execute(text("SELECT reason FROM kafka_transaction_state_heuristics"))
        assert found.scalars().all() == ["a test"]
    assert read_topic(app, servers) == []


def test_recover(servers, url, in_doubt):
    """Recover ends whatever the app's dead instances left."""
    app = in_doubt(True)
    to = ("--bootstrap-servers", servers, "--store", url, "--json")
    done = run("recover", "--app", app, *to)
    assert done.returncode == 0
    assert [entry["transactional_id"] for entry in json.loads(done.stdout)] == [f"{app}-0"]
    assert len(read_topic(app, servers)) == 1


def test_schema(tmp_path):
    """Print gives SQL, check differs before apply and agrees after it."""
    store = ("--store", f"sqlite:///{tmp_path / 'db'}")
    assert "CREATE TABLE" in run("schema", "print", *store).stdout
    assert run("schema", "check", *store).returncode == 1
    assert run("schema", "apply", *store).returncode == 0
    assert run("schema", "check", *store).returncode == 0


def test_schema_beside_a_cluster(tmp_path, servers):
    """Applying and checking also tell of rows that belong to another cluster."""
    url = f"sqlite:///{tmp_path / 'db'}"
    to = ("--store", url, "--bootstrap-servers", servers, "--json")
    assert json.loads(run("schema", "apply", *to).stdout) == {"differences": []}
    store = SqlStore(url)
    store.bind_cluster("orders-0", store.claim("orders-0").fence, "elsewhere")
    store.close()
    for name in ("apply", "check"):
        found = run("schema", name, *to)
        assert found.returncode == 1
        assert "elsewhere" in found.stdout


def test_bench_on_a_cluster(servers):
    """With a cluster, transactions are measured there too."""
    to = ("--seconds", 0.2, "--bootstrap-servers", servers, "--json")
    measured = run("bench", "floor", *to)
    assert measured.returncode == 0, measured.stderr
    there = [row for row in json.loads(measured.stdout)["rows"] if servers in row["section"]]
    assert {row["unit"] for row in there} == {"ms", "txn/s"}
    assert all(row["value"] > 0 for row in there)


def test_demo():
    """Kills the writer twice and ends with 0 only if both sides agree."""
    result = run("demo", "--orders", 6, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["agree"] is True
