"""Recovery beside the writers: once, or for as long as a program lives.

Writers recover on opening, and take over from dead peers while they live; most systems need nothing
else. A recoverer of its own helps where all writers of an app may be gone for long (jobs, functions,
scaled to zero), because what a crash left open holds back the readers until somebody ends it.

    recover({"bootstrap.servers": "..."}, store=store, app="orders")         # once
    keep_recovering({"bootstrap.servers": "..."}, store=store, app="orders", stop=event)

Slots of live instances are never touched, and a recoverer that is overtaken ends nothing.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from dualwrite.errors import DualWriteError
from dualwrite.recovery import EndedTxn, recover, resolve
from dualwrite.store import Store

__all__ = ["EndedTxn", "keep_recovering", "recover", "resolve"]

logger = logging.getLogger("dualwrite.recovery")


def keep_recovering(
    config: Mapping[str, Any],
    *,
    store: Store,
    app: str,
    stop: threading.Event,
    every_seconds: float = 5.0,
    ended: Callable[[EndedTxn], None] | None = None,
) -> None:
    """Recover every few seconds until `stop` is set; an outage of either side is only logged."""
    while not stop.is_set():
        try:
            for each in recover(config, store=store, app=app):
                if ended is not None:
                    ended(each)
        except DualWriteError as error:
            logger.warning("event=recovery_failed app=%s error=%s", app, error)
        stop.wait(every_seconds)
