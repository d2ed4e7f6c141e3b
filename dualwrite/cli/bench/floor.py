"""The floors of this machine: what no broker and no client can be faster than."""

import os
import tempfile
import time
from pathlib import Path

from dualwrite.cli.bench.report import Report, Row, summarize

BLOCK = bytes(4096)


def fdatasync_p50_ms(directory: Path, seconds: float) -> float:
    """Median of overwriting 4 KiB of a written file and fdatasync, as the broker's journal does."""
    path = directory / "floor"
    with path.open("wb") as file:
        file.write(bytes(8 << 20))
        file.flush()
        os.fsync(file.fileno())
    fd = os.open(path, os.O_RDWR)
    durations = []
    begin = time.perf_counter()
    position = 0
    try:
        while time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            os.pwrite(fd, BLOCK, position)
            os.fdatasync(fd)
            durations.append(time.perf_counter() - start)
            position = (position + len(BLOCK)) % (8 << 20)
    finally:
        os.close(fd)
        path.unlink()
    return summarize(durations, time.perf_counter() - begin).p50


def run(report: Report, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        p50 = fdatasync_p50_ms(Path(directory), seconds / 2)
    report.add(
        Row(
            section="floor",
            work="4 KiB write + fdatasync, p50",
            value=p50,
            unit="ms",
            note="one file",
        )
    )
