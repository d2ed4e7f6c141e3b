"""Properties of the source itself that a reviewer should not have to check."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "dualwrite": "dualwrite",
    "dualwrite.adapters": "adapters",
    "dualwrite.broker": "broker",
    "dualwrite.recipes": "recipes",
}
SOURCES = sorted(
    p
    for f in FOLDERS.values()
    for p in (ROOT / f).rglob("*.py")
    if not any(part.is_symlink() for part in p.parents)
)

# Who may import whom. Everything may import itself and the standard library.
MAY_IMPORT = {
    "dualwrite": {"dualwrite"},
    "dualwrite.broker": {"dualwrite.wire"},
    "dualwrite.adapters": {"dualwrite"},
    "dualwrite.recipes": {"dualwrite", "dualwrite.adapters"},
}
# The command line ties everything together; it imports late.
COMMAND_LINE = ROOT / "dualwrite" / "cli"
# So do the fixtures that start a broker.
FIXTURES = ROOT / "dualwrite" / "pytest_plugin.py"

# These know no clock, socket, disk or chance: that is what lets the simulator run the real code.
PURE = [
    "broker/transactions",
    "broker/producers",
    "broker/groups",
    "dualwrite/flows",
    "dualwrite/outcome.py",
    "dualwrite/partitioner.py",
    "dualwrite/prepared.py",
    "dualwrite/slot_ids.py",
    "recipes/spark/ledger.py",
    "recipes/spark/names.py",
    "recipes/spark/offsets.py",
    "recipes/spark/reports.py",
]
IMPURE_MODULES = {
    "asyncio", "os", "random", "secrets", "select", "socket", "ssl", "subprocess", "threading", "time",
}  # fmt: skip
DUMPING_GROUNDS = {"utils", "util", "helpers", "common", "misc", "base"}
SLEEP = ("time.sleep", "asyncio.sleep")
# Where tests may sleep; `sleep(0)`, a turn of the event loop, may be anywhere.
POLL = "looks again and again for a condition, up to a deadline"
DRAWN = "a random or given pause is what is wanted; nothing rests on what has happened by then"
SLEEPS = {
    "bounce/bounce.py::_kill_while_starting": DRAWN,
    "bounce/bounce.py::_wait": POLL,
    "bounce/clients.py::copy": "tries again while the broker is away",
    "bounce/clients.py::_write_async": DRAWN,
    "bounce/clients.py::write_all": DRAWN,
    "conformance/conftest.py::settled": POLL,
    "console/test_prometheus.py::wait": POLL,
    "crash/points.py::stop_at": POLL,
    "dualwrite/waiting.py::wait_until": POLL,
    "faults/proxy.py::_forward": "the delay of a slow network",
    "groups/readers.py::wait_for": POLL,
    "groups/test_python_clients.py::commit": "tries again while the group is being rebalanced",
    "history/trouble.py::_kill": DRAWN,
    "history/trouble.py::_pause": DRAWN,
    "history/trouble.py::_terminate": DRAWN,
    "history/trouble.py::_under": DRAWN,
    "history/workloads.py::_patiently": "tries again while the broker is away",
    "history/workloads.py::_wait_for_all": POLL,
    "interleavings/virtual.py::sleep": "virtual time",
    "servers/postgres.py::crash": "tries again while a child of the killed server is there",
    "servers/processes.py::wait_until_up": POLL,
    "spark/faults.py::_stall": POLL,
    "spark/kafka.py::wait_for": POLL,
    "spark/standalone.py::_wait_for": POLL,
    "spark/test_old_drivers.py::wait_until_stalled": POLL,
    "spark/test_resumed.py::wait_for_timeouts": POLL,
}
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600


def package_of(module: str) -> str:
    """The longest of the four package names that `module` lives in."""
    return max((p for p in FOLDERS if module == p or module.startswith(p + ".")), key=len)


def imports(tree: ast.Module) -> list[str]:
    names = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    names += [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    return names


def ours(names: list[str]) -> list[str]:
    return [n for n in names if n.split(".")[0] == "dualwrite"]


def allowed(importer: str, imported: str) -> bool:
    target = package_of(imported)
    if target == importer:
        return True
    return any(
        imported == a or (imported.startswith(a + ".") and target == package_of(a))
        for a in MAY_IMPORT[importer]
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_source_is_tidy(path):
    tree = ast.parse(path.read_text())
    folder = path.relative_to(ROOT).parts[0]
    importer = next(p for p, f in FOLDERS.items() if f == folder)

    assert path.stem not in DUMPING_GROUNDS
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX
    if COMMAND_LINE not in path.parents and path != FIXTURES:
        assert [n for n in ours(imports(tree)) if not allowed(importer, n)] == []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES_MAX, node.name


def pure_sources() -> list[Path]:
    named = [ROOT / name for name in PURE]
    return [p for p in SOURCES if any(p == n or n in p.parents for n in named)]


@pytest.mark.parametrize("path", pure_sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_pure_module_knows_no_clock_socket_or_disk(path):
    named = {name.split(".")[0] for name in imports(ast.parse(path.read_text()))}

    assert named & IMPURE_MODULES == set()


def sleeps(tree: ast.AST, function: str = "") -> list[str]:
    """The functions in which `time.sleep` or `asyncio.sleep` is called with anything but 0."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += sleeps(node, node.name)
            continue
        found += sleeps(node, function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEP:
            found += [function] if ast.unparse(node.args[0]) != "0" else []
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            assert "sleep" not in [name.name for name in node.names], "say whose sleep it is"
    return found


def test_tests_sleep_only_where_they_poll_or_draw_chance():
    tests = ROOT / "tests"
    found = {
        f"{path.relative_to(tests)}::{function}"
        for path in tests.rglob("*.py")
        for function in sleeps(ast.parse(path.read_text()))
    }

    assert found - set(SLEEPS) == set()
