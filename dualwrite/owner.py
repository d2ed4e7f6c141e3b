"""Who leases a slot: host, process and instance, written so that peers can tell when it is gone.

An owner on the same host whose process is gone is dead at once, without waiting for its lease.
"Same host" is judged strictly (host name, boot and pid namespace), because two containers may
share a name and a pid; in any doubt the answer is "not known to be gone" and the lease decides.
"""

import os
import re
import secrets
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dualwrite.errors import ConfigurationError

_INSTANCE = re.compile(r"[A-Za-z0-9_.-]{0,100}", re.ASCII)
_PID = re.compile(r"[0-9]{1,10}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]", re.ASCII)


def check_instance(instance: str) -> None:
    """Raise `ConfigurationError` for a name that an owner cannot hold."""
    if not isinstance(instance, str) or not _INSTANCE.fullmatch(instance):
        raise ConfigurationError(f"instance name must match {_INSTANCE.pattern}: {instance!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One live instance. `str()` is what the store keeps in a row's `owner`."""

    host: str
    place: str
    """Boot and pid namespace: only inside the same place does a pid mean the same process."""
    pid: int
    started: str
    """Start time of the process, as the system counts it: a recycled pid has another one."""
    token: str
    """Chance, so that two writers in one process are two owners."""
    instance: str = ""
    """A stable name that a restarted instance keeps, e.g. `pod-3`."""

    def __str__(self) -> str:
        parts = (self.host, self.place, str(self.pid), self.started, self.token, self.instance)
        return "/".join(parts)

    @classmethod
    def parse(cls, text: str) -> "Owner | None":
        """Read the text form; None for an owner that another program wrote."""
        parts = text.split("/")
        if len(parts) != 6 or not _PID.fullmatch(parts[2]):
            return None
        host, place, pid, started, token, instance = parts
        return cls(
            host=host, place=place, pid=int(pid), started=started, token=token, instance=instance
        )

    @property
    def name(self) -> str:
        """The instance, for people."""
        known_as = f" ({self.instance})" if self.instance else ""
        return f"process {self.pid} on {self.host}{known_as}"

    @classmethod
    def of_this_process(cls, instance: str = "") -> "Owner":
        check_instance(instance)
        pid = os.getpid()
        return cls(
            host=_UNSAFE.sub("_", socket.gethostname())[:64],
            place=_place(),
            pid=pid,
            started=_start_time(pid) or "0",
            token=secrets.token_hex(4),
            instance=instance,
        )

    def is_gone(self, other: str) -> bool:
        """True if the owner written as `other` can be known to be dead, or is an earlier me.

        Fits `slot_ids.is_free` as it stands.
        """
        owner = Owner.parse(other)
        if owner is None or owner == self:
            return False
        if self.instance and owner.instance == self.instance:
            return True
        if (owner.host, owner.place) != (self.host, self.place):
            return False
        if owner.started == "0":
            return False
        return _start_time(owner.pid) != owner.started


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return "-"
    return f"{boot}.{namespace}"


def _start_time(pid: int) -> str | None:
    """Start time of a process in the system's own form; None if there is no such process."""
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The command's name is in brackets and may itself hold spaces and brackets.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return _UNSAFE.sub("_", answer.stdout.strip()) or None
