"""Fixtures that every test may use; each line names the module that defines them."""

import pytest

pytest_plugins = [
    "tests.dualwrite.fixtures",
    "tests.servers.fixtures",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run what takes minutes to hours")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if "long" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="takes minutes or more: run with --long"))
