"""The conformance suite on SQLite, PostgreSQL and, where there is one, MySQL or MariaDB."""

import pytest

from dualwrite.adapters.conformance import StoreConformance
from tests.adapters.databases import SqlDatabase


class TestSqlite(StoreConformance):
    @pytest.fixture
    def database(self, tmp_path):
        found = SqlDatabase(f"sqlite:///{tmp_path}/state.db")
        yield found
        found.close()


class TestPostgreSql(StoreConformance):
    @pytest.fixture
    def database(self, postgres_url):
        found = SqlDatabase(postgres_url)
        yield found
        found.close()


class TestMySql(StoreConformance):
    @pytest.fixture
    def database(self, mysql_url):
        found = SqlDatabase(mysql_url, lock_timeout=1.0)
        yield found
        found.close()
