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
