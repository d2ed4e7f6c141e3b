"""`register` and `produce` for SQLAlchemy sessions; see `dualwrite.recipes.sessions`.

The recipe lies above this layer, so it is looked up when it is called.
"""

import importlib
from typing import Any


def register(sessionmaker: Any, writer: Any) -> None:
    """Make a sessionmaker's sessions commit to Kafka too; `produce(session, ...)` buffers."""
    importlib.import_module("dualwrite.recipes.sessions").register(sessionmaker, writer)


def produce(session: Any, topic: str, *args: Any, **kwargs: Any) -> None:
    """Buffer a record that is committed with the session; arguments as in `tx.produce`."""
    importlib.import_module("dualwrite.recipes.sessions").produce(session, topic, *args, **kwargs)
