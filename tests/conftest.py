"""Fixtures that every test may use; each line names the module that defines them."""

import random

import pytest

pytest_plugins = [
    "tests.dualwrite.fixtures",
    "tests.servers.fixtures",
    "tests.workers",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run what takes minutes to hours")
    parser.addoption(
        "--soak", type=float, default=60, help="seconds of the bounce test and of long campaigns"
    )
    parser.addoption("--seed", type=int, help="of tests that draw one: replays what they print")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What a test draws by chance comes from it. Printed before its use: a run may not come back."""
    given: int | None = request.config.getoption("--seed")
    number = random.randrange(10**6) if given is None else given
    print(f"seed {number}", flush=True)
    return number


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--soak"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "soak_seconds" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(config.getoption("--soak") * 1.5 + 600))
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):  # keywords hold the names of folders, too
            item.add_marker(pytest.mark.skip(reason="takes minutes or more: run with --long"))
