"""Recovery without a writer: for operators, and for programs that only want to clean up."""

from collections.abc import Callable, Mapping
from typing import Any

from dualwrite.kafka_access import KafkaAccess
from dualwrite.owner import Owner
from dualwrite.slot_pool import Slot
from dualwrite.steps import Steps, run
from dualwrite.store import Store
from dualwrite.surroundings import EndedTxn, Surroundings
from dualwrite.upkeep import StoreLeaser, Upkeep
from dualwrite.writer_settings import ModeName, WriterSettings

__all__ = ["EndedTxn", "recover", "resolve"]


def recover(
    config: Mapping[str, Any],
    *,
    store: Store,
    app: str,
    mode: ModeName = "auto",
    adopt: bool = False,
) -> list[EndedTxn]:
    """End whatever dead instances of the app have left in doubt, and tell what that was.

    Slots of live instances are never touched. Raises what opening a writer would raise.
    """
    settings = WriterSettings(config=config, app=app, slots=1, mode=mode, adopt=adopt)
    return _recover(settings, store, lambda upkeep: upkeep.recover_only())


def resolve(
    config: Mapping[str, Any],
    transactional_id: str,
    *,
    store: Store,
    mode: ModeName = "auto",
    adopt: bool = False,
) -> list[EndedTxn]:
    """End what one slot has open, as the store says, even if its owner is alive.

    The claim comes first, so that no commit can land any more: a live owner is fenced, gets a
    retryable error and leases another slot.
    """
    app = transactional_id.rpartition("-")[0] or transactional_id
    settings = WriterSettings(config=config, app=app, slots=1, mode=mode, adopt=adopt)
    return _recover(settings, store, lambda upkeep: upkeep.resolve(transactional_id))


def _recover(
    settings: WriterSettings, store: Store, steps: Callable[[Upkeep], Steps[None]]
) -> list[EndedTxn]:
    owner = Owner.of_this_process()
    kafka = KafkaAccess(settings)
    ended: list[EndedTxn] = []
    around = Surroundings(
        app=settings.app,
        owner_name=str(owner),
        store=store,
        kafka=kafka,
        adopt=settings.adopt,
        resume_timeout=settings.resume_timeout_ms / 1000,
        ended=ended,
    )
    upkeep = Upkeep(settings, around, owner, StoreLeaser(store), _nobody_waits)
    try:
        run(steps(upkeep))
    finally:
        run(upkeep.close_after_failure())
        kafka.close()
    return ended


def _nobody_waits(slot: Slot) -> None:
    raise AssertionError(f"{slot.transactional_id} was recovered to be kept")
