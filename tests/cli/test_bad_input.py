"""Whatever an operator gets wrong is said in a line, soon, and with its exit code: 1 refused, 2 usage."""

import socket
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
from sqlalchemy import create_engine, text

from dualwrite.broker import Broker
from dualwrite.cli.connecting import LOCAL, kafka_config
from tests.cli.operator import APP, as_json, dualwrite

SQLITE = ("--store", "sqlite://")
ON_A_CLUSTER = {
    ("txn", "list"): (),
    ("txn", "describe"): ("x",),
    ("txn", "explain"): ("x", *SQLITE),
    ("txn", "resolve"): ("x", *SQLITE),
    ("txn", "force-terminate"): ("x", *SQLITE),
    ("topic", "create"): ("x",),
    ("topic", "list"): (),
    ("topic", "describe"): ("x",),
    ("topic", "delete"): ("x",),
    ("acl", "add"): ("--principal", "User:a", "--operation", "Read", "--topic", "x"),
    ("acl", "list"): (),
    ("acl", "remove"): ("--principal", "User:a"),
    ("user", "add"): ("x", "--password-file", "PASSWORD"),
    ("user", "list"): (),
    ("user", "remove"): ("x",),
    ("recover",): ("--app", "a", *SQLITE),
    ("doctor",): (),
    ("spark", "status"): ("--sink", "s"),
    ("spark", "recover"): ("--sink", "s"),
    ("spark", "forget"): ("--sink", "s"),
    ("schema", "apply"): ("--store", "SCHEMA"),
    ("schema", "check"): ("--store", "SCHEMA"),
    ("bench",): ("floor",),
}
NOT_ON_A_CLUSTER = {
    "broker": "is one",
    "console": "serves pages, not JSON",
    "demo": "starts its own",
}
ASKS_NOBODY = ("schema", "print")


def commands(group=None, path=()):
    for name, command in (group or typer.main.get_command(APP)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_operators_command_takes_the_same_three_options():
    named = {
        path: {option for parameter in command.params for option in parameter.opts}
        for path, command in commands()
    }

    three = {"--bootstrap-servers", "--command-config", "--json"}
    takers = {*ON_A_CLUSTER, ASKS_NOBODY}
    assert {path for path, options in named.items() if three <= options} == takers
    assert {" ".join(path) for path in named} - set(NOT_ON_A_CLUSTER) == {
        " ".join(path) for path in takers
    }


def test_what_asks_nobody_takes_the_options_all_the_same(nowhere):
    to = ("--bootstrap-servers", nowhere, "--command-config", "/nowhere", "--json")
    result = dualwrite(*ASKS_NOBODY, "--store", "sqlite://", *to)

    assert result.exit_code == 0
    assert "CREATE TABLE" in as_json(result)["sql"]


@pytest.fixture
def nowhere():
    """An address at which connections are refused, for as long as the test lasts."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def settings_of(tmp_path, address):
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={address}\nmax.block.ms=300\n")
    return file


@pytest.mark.parametrize("path", ON_A_CLUSTER, ids=" ".join)
def test_unreachable_cluster_is_refused_and_named(tmp_path, nowhere, path):
    (tmp_path / "password").write_text("secret\n")
    url = f"sqlite:///{tmp_path / 'schema.db'}"
    assert dualwrite("schema", "apply", "--store", url).exit_code == 0
    places = {"PASSWORD": tmp_path / "password", "SCHEMA": url}
    arguments = [places.get(argument, argument) for argument in ON_A_CLUSTER[path]]

    file = settings_of(tmp_path, nowhere)
    result = dualwrite(*path, *arguments, "--command-config", file)

    assert result.exit_code == 1
    said = "".join(character for character in result.output if character not in "\n│ ")
    assert f"nobrokeranswersat{nowhere}"[:30] in said
    assert isinstance(result.exception, SystemExit)


def test_a_server_that_never_answers_is_unreachable_too(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        result = dualwrite("topic", "list", "--command-config", settings_of(tmp_path, address))

    assert result.exit_code == 1
    assert f"no broker answers at {address} within 0.3 s" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing",),
        ("txn", "explain"),
        ("txn", "explain", "x"),
        ("txn", "explain", "x", "--store", "no-such://x"),
        ("txn", "list", "--command-config", "/nowhere"),
        ("txn", "list", "--bootstrap-servers", "host:port"),
        ("txn", "list", "--min-duration-ms", "long"),
        ("txn", "list", "--pattern", "("),
        ("txn", "list", "--state", "Prepard"),
        ("txn", "force-terminate", "x", *SQLITE, "--heuristic"),
        ("topic", "create", "x", "--config", "retention.ms"),
        ("topic", "create", "x", "--partitions", "many"),
        ("topic", "create", "x", "--partitions", "99999999999"),
        ("topic", "create", "x", "--replication-factor", "99999"),
        ("acl", "add"),
        ("acl", "add", "--principal", "User:a", "--operation", "Fly", "--topic", "t"),
        ("acl", "remove"),
        ("user", "add", "x", "--password-file", "/nowhere"),
        ("user", "remove", "x", "--mechanism", "MD5"),
        ("recover",),
        ("recover", "--app", "a"),
        ("recover", "--app", "a/b", *SQLITE),
        ("recover", "--app", "a", "--bootstrap-servers", "h:1", "--store", "no-such://x"),
        ("spark", "status"),
        ("spark", "status", "--sink", "a/b"),
        ("spark", "status", "--sink", "s", "--mode", "3pc"),
        ("spark", "forget", "--sink", "s", "--lost", "--job", "j"),
        ("schema", "check"),
        ("schema", "check", "--store", "no-such://x"),
        ("schema", "print", "--store", "sqlite://", "--table", "a;b"),
        ("console", "--store", "no-such://x"),
        ("console", "--http-port", "99999"),
        ("broker", "--listen", "nowhere"),
        ("broker", "--set", "no.such.key=1"),
        ("bench", "no-such-section"),
        ("txn", "describe", ""),
        ("txn", "explain", "", *SQLITE),
        ("txn", "resolve", "", *SQLITE),
        ("txn", "force-terminate", "", *SQLITE),
        ("topic", "create", ""),
        ("topic", "describe", ""),
        ("topic", "delete", ""),
        ("user", "add", ""),
        ("user", "remove", ""),
        ("acl", "add", "--principal", "", "--operation", "Read", "--topic", "t"),
        ("acl", "add", "--principal", "User:a", "--operation", "Read", "--topic", ""),
        ("acl", "list", "--group", ""),
        ("acl", "list", "--principal", ""),
        ("acl", "remove", "--transactional-id", "a", "--transactional-id", ""),
        ("recover", "--app", "", *SQLITE),
        ("recover", "--app", "a", "--store", ""),
        ("recover", "--app", "a", *SQLITE, "--table", ""),
        ("schema", "print", *SQLITE, "--table", ""),
        ("schema", "print", *SQLITE, "--schema", ""),
        ("spark", "status", "--sink", ""),
        ("spark", "forget", "--sink", "s", "--query", ""),
        ("spark", "forget", "--sink", "s", "--job", ""),
        ("txn", "list", "--bootstrap-servers", ""),
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments):
    result = dualwrite(*arguments)

    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("name", ["\udcff", "x" * 32_768], ids=["not UTF-8", "too long"])
@pytest.mark.parametrize(
    "command",
    [
        ("txn", "describe"),
        ("txn", "explain", *SQLITE),
        ("topic", "create"),
        ("topic", "describe"),
        ("user", "remove"),
        ("acl", "list", "--topic"),
        ("acl", "remove", "--principal"),
    ],
    ids=" ".join,
)
def test_a_name_that_no_request_can_carry_is_wrong_usage(command, name):
    """What a shell hands over need not be text."""
    result = dualwrite(*command, name)

    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


def test_an_app_without_rows_is_named(sqlite_world):
    """A misspelt app has nothing in doubt, which would look like success."""
    to = ("--bootstrap-servers", sqlite_world.bootstrap, "--store", sqlite_world.url)
    table = ("--table", sqlite_world.state_table)

    result = dualwrite("recover", "--app", "misspelt", *to, *table)

    assert result.exit_code == 0
    assert "no rows of an app misspelt" in result.stderr


def test_version():
    assert dualwrite("--version").stdout == f"dualwrite {version('dualwrite')}\n"


@pytest.mark.parametrize(
    ("command", "option"),
    [(("txn", "list"), "--command-config"), (("user", "add", "x"), "--password-file")],
    ids=" ".join,
)
def test_a_file_that_is_no_text(tmp_path, command, option):
    file = tmp_path / "file"
    file.write_bytes(b"\xff\xfe\x00")
    result = dualwrite(*command, option, file)

    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


def test_a_file_of_settings_with_a_wrong_line(tmp_path):
    file = tmp_path / "client.properties"
    for line, said in [("sasl.password", "not a key=value line"), ("no.such=1", "no.such")]:
        file.write_text(f"{line}\n")
        result = dualwrite("topic", "list", "--command-config", file)

        assert result.exit_code == 2
        assert said in result.output


@pytest.mark.parametrize(
    "command",
    [("schema", "check"), ("txn", "explain", "x"), ("recover", "--app", "a"), ("doctor",)],
    ids=" ".join,
)
def test_dead_database_is_refused_without_its_password(sqlite_world, nowhere, command):
    store = f"postgresql+psycopg://user:canary@{nowhere}/x"

    to = ("--bootstrap-servers", sqlite_world.bootstrap)
    result = dualwrite(*command, "--store", store, *to)

    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "canary" not in result.output


def test_dead_zookeeper_is_told_in_one_line(nowhere):
    """Its driver would log a line for each of its tries."""
    command = (sys.executable, "-m", "dualwrite.cli", "recover", "--app", "a")
    store = ("--store", f"zookeeper://{nowhere}/root")
    done = subprocess.run([*command, *store], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert done.stderr.startswith("dualwrite: ZooKeeper did not answer")


@pytest.mark.parametrize("command", [("console",), ("broker", "--http-port", "0")], ids=" ".join)
def test_a_console_does_not_start_without_its_store(tmp_path, nowhere, command):
    store = ("--store", f"zookeeper://{nowhere}/root")
    if command[0] == "broker":
        command += ("--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data")
        token = ("--http-token-file", tmp_path / "token")
    else:
        token = ("--token-file", tmp_path / "token")
    whole = [sys.executable, "-m", "dualwrite.cli", *command, *token, *store]
    done = subprocess.run(list(map(str, whole)), capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "ZooKeeper did not answer" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("scheme", ["sqlite:///", "rocksdb:"])
def test_looking_at_a_store_does_not_make_one(sqlite_world, tmp_path, scheme):
    """A misspelt path would be an empty store, in which nothing is in doubt."""
    missing = tmp_path / "misspelt"
    to = ("--store", f"{scheme}{missing}", "--bootstrap-servers", sqlite_world.bootstrap)

    for command in (("doctor",), ("txn", "explain", "x"), ("recover", "--app", "a")):
        result = dualwrite(*command, *to)

        assert result.exit_code == 2
        assert "there is nothing at" in result.output
        assert not missing.exists()


def test_a_cluster_that_asks_for_a_login_is_not_waited_for(tmp_path):
    users = tmp_path / "users.toml"
    users.write_text('[users]\nroot = "secret"\n')
    users.chmod(0o600)
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "users.file": str(users)}
    with Broker(settings=settings) as broker:
        file = settings_of(tmp_path, broker.bootstrap_servers)
        result = dualwrite("txn", "list", "--command-config", file)

    assert result.exit_code == 1
    assert "no broker answers" in result.output
    assert "--command-config" in result.output


def test_without_any_address_it_is_the_brokers_own_default(sqlite_world, monkeypatch):
    monkeypatch.delenv("DUALWRITE_BOOTSTRAP_SERVERS", raising=False)
    assert kafka_config(None, None)["bootstrap.servers"] == LOCAL == "127.0.0.1:9092"

    monkeypatch.setenv("DUALWRITE_BOOTSTRAP_SERVERS", sqlite_world.bootstrap)
    for command in (("txn", "list"), ("topic", "list"), ("doctor",)):
        assert dualwrite(*command).exit_code == 0


def test_schema_check_finds_rows_of_another_cluster(sqlite_world):
    with sqlite_world.writer() as dw, dw.transaction() as tx:
        sqlite_world.order(tx, 1)
    to = ("--store", sqlite_world.url, "--table", sqlite_world.state_table, "--json")
    on = ("--bootstrap-servers", sqlite_world.bootstrap)
    assert dualwrite("schema", "check", *to, *on).exit_code == 0

    engine = create_engine(sqlite_world.url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {sqlite_world.state_table} SET cluster_id = 'elsewhere'"))
    engine.dispose()

    assert dualwrite("schema", "check", *to).exit_code == 0
    result = dualwrite("schema", "check", *to, *on)
    assert result.exit_code == 1
    assert "bound to another cluster, elsewhere" in as_json(result)["differences"][0]
