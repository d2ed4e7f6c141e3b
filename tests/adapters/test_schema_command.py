"""`dualwrite schema`, and the Tables that Alembic sees."""

import json

import pytest
from sqlalchemy import MetaData, create_engine, inspect, text
from typer.testing import CliRunner

from dualwrite.adapters.opening import open_store
from dualwrite.adapters.rocksdb import RocksDbStore
from dualwrite.adapters.sql import SqlStore
from dualwrite.cli import build_app
from dualwrite.errors import ConfigurationError

NAMES = {"", "_lease", "_heuristics", "_outbox"}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/state.db"


def run(*arguments, **environment):
    return CliRunner().invoke(build_app(), ["schema", *arguments], env=environment or None)


def test_check_apply_check(url):
    before = run("check", "--store", url)
    assert before.exit_code == 1
    assert "table kafka_transaction_state is missing" in before.output

    assert run("apply", "--store", url).exit_code == 0
    assert run("apply", "--store", url).exit_code == 0
    after = run("check", "--store", url, "--json")
    assert after.exit_code == 0
    assert json.loads(after.output) == {"differences": []}


def test_missing_column_is_named(url):
    run("apply", "--store", url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE kafka_transaction_state DROP COLUMN cluster_id"))
    engine.dispose()

    found = run("check", DUALWRITE_STORE=url)
    assert found.exit_code == 1
    assert "column kafka_transaction_state.cluster_id is missing" in found.output


def test_printed_statements_make_the_tables(url):
    printed = run("print", "--store", url, "--table", "mine")
    assert printed.exit_code == 0
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in printed.output.split(";"):
            if statement.strip():
                connection.execute(text(statement))
    engine.dispose()
    assert run("check", "--store", url, "--table", "mine").exit_code == 0


def test_print_needs_no_database():
    printed = run("print", "--store", "postgresql://nobody@127.0.0.1:1/none")
    assert printed.exit_code == 0
    assert 'COLLATE "C"' in printed.output


def test_unreachable_database_is_one_line_without_the_password():
    found = run("check", "--store", "postgresql://nobody:canary@127.0.0.1:1/none")
    assert found.exit_code == 1
    assert "canary" not in found.output
    assert "Traceback" not in found.output


def test_wrong_name_and_missing_store_are_refused(url):
    assert run("check", "--store", url, "--table", "a; DROP").exit_code == 2
    assert run("check").exit_code == 2
    assert run("check", "--store", "nonsense").exit_code == 2


def test_tables_for_alembic(url):
    metadata = MetaData()
    tables = SqlStore.table(metadata)
    assert {table.name for table in tables} == {"kafka_transaction_state" + n for n in NAMES}
    engine = create_engine(url)
    metadata.create_all(engine)
    assert set(inspect(engine).get_table_names()) == {table.name for table in tables}
    assert SqlStore(engine).claim("app-0").fence == 1
    engine.dispose()


def test_urls_name_stores(tmp_path, url):
    store = open_store(f"rocksdb://{tmp_path}/rocks")
    assert isinstance(store, RocksDbStore)
    store.close()
    sql = open_store(url, table="mine")
    assert isinstance(sql, SqlStore)
    sql.close()
    with pytest.raises(ConfigurationError):
        open_store("oracle+nothing://somewhere")
