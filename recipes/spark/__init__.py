"""Exactly-once Kafka for Spark Structured Streaming, by two-phase commit (KIP-939)."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualwrite.recipes.spark.data_source import register
    from dualwrite.recipes.spark.foreach_batch import KafkaSink
    from dualwrite.recipes.spark.java import ensure_java
    from dualwrite.recipes.spark.listener import SinkListener

__all__ = ["KafkaSink", "SinkListener", "ensure_java", "register"]

_HOMES = {
    "KafkaSink": "foreach_batch",
    "SinkListener": "listener",
    "ensure_java": "java",
    "register": "data_source",
}


def __getattr__(name: str) -> object:
    # Imported when asked for: the command line works on a sink without Spark being installed.
    if name in _HOMES:
        try:
            home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
        except ModuleNotFoundError as error:
            missing = f"{name} needs the extra: pip install 'dualwrite[spark]' ({error})"
            raise ModuleNotFoundError(missing, name=error.name) from error
        return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
