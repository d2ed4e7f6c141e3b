"""`PreparedTxnState`: the name of a prepared transaction, as KIP-939 writes it."""

import re
from dataclasses import dataclass
from typing import ClassVar

_TEXT = re.compile(r"([0-9]{1,19}):([0-9]{1,5})", re.ASCII)
_PRODUCER_ID_MAX = 2**63 - 1
_EPOCH_MAX = 2**15 - 1


@dataclass(frozen=True, slots=True)
class PreparedTxnState:
    """Producer id and epoch of a prepared transaction; `-1:-1`, written as "", is none."""

    producer_id: int = -1
    epoch: int = -1

    NONE: ClassVar["PreparedTxnState"]

    def __post_init__(self) -> None:
        if isinstance(self.producer_id, str):  # the text form alone, as KIP-939's class takes it
            if self.epoch != -1:
                raise TypeError("a prepared transaction state is one text or two numbers")
            read = self.parse(self.producer_id)
            object.__setattr__(self, "producer_id", read.producer_id)
            object.__setattr__(self, "epoch", read.epoch)
        elif not (isinstance(self.producer_id, int) and isinstance(self.epoch, int)):
            raise TypeError(
                f"not a prepared transaction state: {self.producer_id!r}, {self.epoch!r}"
            )

    @property
    def has_transaction(self) -> bool:
        return self.producer_id != -1

    def __bool__(self) -> bool:
        return self.has_transaction

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.epoch}" if self.has_transaction else ""

    @classmethod
    def parse(cls, text: str | None) -> "PreparedTxnState":
        """Read the text form; anything but "<producer id>:<epoch>" or "" is a ValueError."""
        if not text:
            return cls.NONE
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not a prepared transaction state: {text!r}")
        producer_id, epoch = int(match[1]), int(match[2])
        if producer_id > _PRODUCER_ID_MAX or epoch > _EPOCH_MAX:
            raise ValueError(f"prepared transaction state out of range: {text!r}")
        return cls(producer_id, epoch)


PreparedTxnState.NONE = PreparedTxnState()
