"""Fixtures that every test may use; each line names the module that defines them."""

pytest_plugins = [
    "tests.servers.fixtures",
]
