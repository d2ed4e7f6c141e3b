"""What a partition answers when a batch or a marker asks to be appended."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from dualwrite.wire.error_codes import ErrorCode


class Origin(Enum):
    """Who appends: a producer with its sequences, or a coordinator, which has none."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class Standing(Enum):
    """What the partition knows of a pair before the transaction coordinator is asked."""

    OPEN = "open"  # has a transaction open here
    FENCED = "fenced"  # a higher epoch was here: refuse, and leave the coordinator alone
    UNKNOWN = "unknown"  # only the coordinator can tell


@dataclass(frozen=True, slots=True)
class Accept:
    """Append it."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """It is in the log already: answer success with these offsets and write nothing."""

    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Write nothing and answer this code."""

    code: ErrorCode
    reason: str


ACCEPT: Final = Accept()

Verdict: TypeAlias = Accept | Duplicate | Refuse
