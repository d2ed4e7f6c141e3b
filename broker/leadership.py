"""One broker leads every partition, in the first and only leader epoch (KIP-320)."""

from typing import Final

from dualwrite.wire.error_codes import ErrorCode

LEADER_EPOCH: Final = 0


def epoch_error(current: int) -> ErrorCode:
    """What a client is told that takes `current` for the leader epoch; below 0 it names none."""
    return ErrorCode.UNKNOWN_LEADER_EPOCH if current > LEADER_EPOCH else ErrorCode.NONE
