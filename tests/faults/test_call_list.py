"""The list of durable calls that can be made to fail is whole: the kernel is asked, and the source.

A broker is run through the scenario of test_syscalls.py by strace, and what the kernel was asked to
change in the data directory is compared, file by file, with what failing_os.py counted meanwhile.
"""

import ast
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.dualwrite.waiting import wait_until
from tests.faults.failing_os import KINDS, counted
from tests.faults.test_syscalls import FailingBroker, life, make_past

ROOT = Path(__file__).parents[2]
# Whatever changes files: what the broker uses today, and what it might one day.
CHANGES = (
    "write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile", "splice", "copy_file_range",
    "fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync", "mmap", "io_uring_setup",
    "open", "openat", "openat2", "creat", "truncate", "ftruncate", "fallocate",
    "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
    "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat", "mknod", "mknodat",
)  # fmt: skip
# What Python's `os` calls them; on some machines the C library uses the calls with a directory.
NAMES = {
    "pwrite64": "pwrite",
    "pwritev2": "pwritev",
    "renameat": "rename",
    "renameat2": "rename",
    "unlinkat": "unlink",
    "mkdirat": "mkdir",
    "open": "create",
    "openat": "create",
    "openat2": "create",
    "creat": "create",
}
LINE = re.compile(r"(\w+)\((.*)\) += (-?\w+)")
PATH = re.compile(r'\d<([^>]*)>|"([^"]*)"')
# Of `os`, what changes nothing; `makedirs` comes to `os.mkdir`, which the shim replaces.
CHANGES_NOTHING = {"close", "fstat", "fspath", "listdir", "makedirs", "pread", "statvfs", "urandom"}
NO_CALLS = {"path", "PathLike"}


def can_trace() -> str:
    """Why not, or nothing."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    command = ["strace", "-f", "-y", "-e", "trace=mkdir", "-o", "/dev/null", "true"]
    tried = subprocess.run(command, capture_output=True, text=True)
    return f"strace can't attach: {tried.stderr.strip()}" if tried.returncode else ""


def traced(into: Path) -> list[str]:
    """The beginning of a command whose changes are told by a file for each thread.

    The tracer is the grandchild, so that the process that is started is the traced one.
    """
    into.mkdir()
    calls = ",".join(f"?{name}" for name in CHANGES)  # not every machine has all of them
    return ["strace", "-D", "-ff", "-y", "-s", "0", "-e", f"trace={calls}", "-o", str(into / "of")]


def is_written(into: Path) -> bool:
    """Whether the tracer has seen all threads end."""
    return all("+++ " in path.read_text()[-200:] for path in into.iterdir())


def changes(into: Path, data: Path, there: set[str]) -> Counter[tuple[str, str]]:
    """What the kernel was asked to change below `data`, by kind and path; `there` was there before."""
    found: Counter[tuple[str, str]] = Counter()
    for trace in into.iterdir():
        for line in trace.read_text().splitlines():
            match = LINE.match(line)
            if match is None or match[3] == "-1":
                continue
            name, arguments, _ = match.groups()
            paths = [text for pair in PATH.findall(arguments) for text in pair if text]
            # A path that is given may stand behind the directory that it is relative to.
            path = next((p.removesuffix("(deleted)") for p in paths if is_below(p, data)), "")
            if path and is_change(name, arguments, path in there):
                found[kind_of(name, arguments), path] += 1
    return found


def is_below(path: str, data: Path) -> bool:
    return path == str(data) or path.startswith(f"{data}/")


def kind_of(name: str, arguments: str) -> str:
    return "rmdir" if "AT_REMOVEDIR" in arguments else NAMES.get(name, name)


def is_change(name: str, arguments: str, is_there: bool) -> bool:
    match NAMES.get(name, name):
        case "create":
            makes = "O_CREAT" in arguments or name == "creat"
            return "O_TRUNC" in arguments or (makes and not is_there)
        case "mmap":
            return "PROT_WRITE" in arguments and "MAP_SHARED" in arguments
    return True


@pytest.mark.slow
def test_no_change_of_the_data_directory_gets_past_the_shim(tmp_path):
    if reason := can_trace():
        pytest.skip(reason)
    past = tmp_path / "past"
    past.mkdir()
    make_past(past)
    data = (past / "data").resolve()
    there = {str(path) for path in data.rglob("*")}
    traces = tmp_path / "traces"

    broker = FailingBroker(past, tracer=traced(traces))
    try:
        story, deletion = life(broker)
        broker.process.terminate()
    finally:
        code = broker.end(is_dying=True)
    wait_until(lambda: is_written(traces))

    assert (story.is_complete, deletion, code) == (True, "done", 0)
    real = changes(traces, data, there)
    seen = Counter((kind, path) for kind, path in counted(broker.counter) if is_below(path, data))
    kinds = Counter({kind: 0 for kind in KINDS})
    for (kind, _), number in real.items():
        kinds[kind] += number
    print(f"{real.total()} changes of {len({path for _, path in real})} files: {dict(kinds)}")
    assert real - seen == Counter(), "changes that failing_os can't make fail"
    assert seen - real == Counter(), "failing_os counts what never came to the kernel"
    assert +kinds == kinds, "a kind does not occur"


def names_of_os(tree: ast.Module) -> set[str]:
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os"
    }


def imported(tree: ast.Module) -> set[str]:
    modules = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    modules |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    return {name.split(".")[0] for name in modules}


STORAGE = sorted((ROOT / "broker" / "storage").glob("*.py"))
OTHER_WAYS = {"io", "mmap", "pathlib", "shutil", "tempfile", "ctypes", "subprocess"}


@pytest.mark.parametrize("path", STORAGE, ids=lambda path: path.name)
def test_the_storage_changes_files_by_calls_that_the_shim_knows(path):
    tree = ast.parse(path.read_text())
    used = {name for name in names_of_os(tree) if not name.startswith("O_")}
    builtins = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}

    assert used <= {*KINDS, "open"} | CHANGES_NOTHING | NO_CALLS
    assert not imported(tree) & OTHER_WAYS
    assert "open" not in builtins, "it reaches the disk without os"
    if path.name != "disk.py":
        assert not used - {"path", "PathLike", "fspath"}, "all of it is to go through the disk"
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "os"]
