"""What a dual writer is told, checked once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from dualwrite.config import parse_config, require_mapping
from dualwrite.errors import ConfigurationError
from dualwrite.owner import check_instance
from dualwrite.slot_ids import check_app

KafkaCommit = Literal["wait", "background"]
ModeName = Literal["auto", "2pc", "resume"]

LEASE_SHARE = 0.7
ROUND_SHARE = 0.1
"""A lease lasts 0.7 of `lease_seconds` and is renewed and looked at every 0.1 of it: a dead peer's
slots are taken over before `lease_seconds` have passed, and six renewals may fail before that."""

SLOT_TIMEOUT_MAX = 86_400
"""Clocks and locks refuse what some programs take for "for ever"."""

RESUME_TIMEOUTS_MS = (900_000, 600_000, 300_000, 120_000, 60_000, 30_000, 10_000)
"""The longest that the broker takes is the longest outage that resume mode bridges by itself.

The first is brokers' usual upper limit, the others what administrators usually lower it to. Trying
them needs no right, and asking for the limit would.
"""

_OWNED = (
    "transactional.id",
    "transaction.two.phase.commit.enable",
    "enable.idempotence",
    "acks",
)
# Database locks are held while Kafka is asked, so Kafka has to fail long before a database would;
# and a writer that opens tells soon that Kafka is not there.
_PATIENCE = {"max.block.ms": 15_000, "delivery.timeout.ms": 15_000, "request.timeout.ms": 10_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """The arguments of `DualWriter` and `AsyncDualWriter`, apart from the store."""

    config: Mapping[str, Any] = field(repr=False)
    app: str
    slots: int = 8
    lease_seconds: float = 10
    kafka_commit: KafkaCommit = "wait"
    slot_timeout: float = 30
    instance: str = ""
    mode: ModeName = "auto"
    adopt: bool = False
    on_step: Callable[[str], None] | None = None
    _timeouts_ms: list[int] = field(
        init=False, repr=False, compare=False, default_factory=lambda: list(RESUME_TIMEOUTS_MS)
    )
    """What no broker has refused yet."""

    def __post_init__(self) -> None:
        require_mapping(self.config)
        check_app(self.app)
        check_instance(self.instance)
        _check_number("slots", self.slots, Integral, 1, 10_000)
        _check_number("lease_seconds", self.lease_seconds, Real, 0.5, 3600)
        _check_number("slot_timeout", self.slot_timeout, Real, 0, SLOT_TIMEOUT_MAX)
        if self.kafka_commit not in ("wait", "background"):
            raise ConfigurationError(
                f"kafka_commit must be 'wait' or 'background', not {self.kafka_commit!r}"
            )
        if self.mode not in ("auto", "2pc", "resume"):
            raise ConfigurationError(f"mode must be auto, 2pc or resume, not {self.mode!r}")
        owned = [key for key in _OWNED if key in self.config]
        if owned:
            raise ConfigurationError(f"{owned[0]!r} is set by the dual writer itself")
        if "transaction.timeout.ms" in self.config and self.mode != "resume":
            raise ConfigurationError(
                "'transaction.timeout.ms' has no meaning for prepared transactions (KIP-939);"
                " it can be set with mode='resume'"
            )
        # A key that nobody knows is told here, and not when the first slot is opened.
        is_two_phase = self.mode != "resume"
        parse_config(self.producer_config(self.app, two_phase=is_two_phase), transactional=True)

    @property
    def row_lease_seconds(self) -> float:
        return self.lease_seconds * LEASE_SHARE

    @property
    def round_seconds(self) -> float:
        return self.lease_seconds * ROUND_SHARE

    @property
    def admin_config(self) -> dict[str, Any]:
        config = {**_PATIENCE, **self.config}
        config.pop("transaction.timeout.ms", None)
        return config

    def producer_config(self, transactional_id: str, *, two_phase: bool) -> dict[str, Any]:
        config = {**_PATIENCE, **self.config, "transactional.id": transactional_id}
        if two_phase:
            config["transaction.two.phase.commit.enable"] = True
        else:
            config.setdefault("transaction.timeout.ms", self._timeouts_ms[0])
        return config

    @property
    def resume_timeout_ms(self) -> int:
        return int(self.config.get("transaction.timeout.ms", self._timeouts_ms[0]))

    def lower_resume_timeout(self) -> bool:
        """Go on with the next smaller one, as the broker refuses this; False if it was given."""
        if "transaction.timeout.ms" in self.config:
            return False
        if len(self._timeouts_ms) == 1:
            raise ConfigurationError(
                f"the broker's transaction.max.timeout.ms is below {self.resume_timeout_ms} ms, which"
                " leaves resume mode too little time: raise it, or give 'transaction.timeout.ms' with"
                " mode='resume'"
            )
        del self._timeouts_ms[0]
        return True


def _check_number(name: str, value: object, kind: type, low: float, high: float) -> None:
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        raise ConfigurationError(f"{name} must lie in {low} .. {high}, not {value!r}")
