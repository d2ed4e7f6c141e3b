"""The bundled broker: Kafka's protocol, two-phase commit and durable by default, in one process."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualwrite.broker.broker import Broker
    from dualwrite.broker.broker_process import BrokerProcess

__all__ = ["Broker", "BrokerProcess"]


def __getattr__(name: str) -> object:
    # Imported when asked for: most users of this package's parts need no event loop.
    if name == "Broker":
        from dualwrite.broker.broker import Broker

        return Broker
    if name == "BrokerProcess":
        from dualwrite.broker.broker_process import BrokerProcess

        return BrokerProcess
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
