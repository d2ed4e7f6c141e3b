"""What was done through the console, by line, in a file that only its owner can read."""

import json
import logging
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

log = logging.getLogger("dualwrite.console")

TAIL_BYTES: Final = 64 * 1024


class AuditLog:
    """A file of JSON lines, synced line by line: an attempt is on disk before it is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def write(self, action: str, transactional_id: str, **facts: Any) -> None:
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "action": action,
            "transactional_id": transactional_id,
            **facts,
        }
        line = json.dumps(entry)
        log.warning("audit: %s", line)
        with self._lock:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(self.path, flags, 0o600)
            try:
                os.write(fd, line.encode() + b"\n")
                os.fsync(fd)
            finally:
                os.close(fd)

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The newest entries, newest first."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL_BYTES))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return []
        if size > TAIL_BYTES:
            lines = lines[1:]
        return [json.loads(line) for line in reversed(lines[-limit:])]
