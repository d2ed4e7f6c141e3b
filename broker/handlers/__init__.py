"""The served APIs: one module per API key, found by being in this package.

A handler is registered with its key, its versions and its request class; what ApiVersions tells
clients is derived from the same registry, so the broker can't offer what it doesn't serve.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, TypeVar

from dualwrite.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

HandlerT = TypeVar("HandlerT", bound="Callable[[Node, Call[Any]], Any]")


@dataclass(frozen=True, slots=True)
class Api:
    """One API: the versions that are served, the version from which it is offered, the handler."""

    key: ApiKey
    first: int
    last: int
    offered_from: int
    request: type[Any]
    serve: "Callable[[Node, Call[Any]], Any]"


_registry: dict[int, Api] = {}


def handles(
    key: ApiKey,
    versions: tuple[int, int],
    request: type[Any],
    *,
    offered_from: int | None = None,
) -> "Callable[[HandlerT], HandlerT]":
    """Register the decorated function as the handler of an API."""

    def register(serve: HandlerT) -> HandlerT:
        assert key not in _registry, f"{key.name} has two handlers"
        first, last = versions
        _registry[key] = Api(
            key, first, last, first if offered_from is None else offered_from, request, serve
        )
        return serve

    return register


@cache
def served_apis() -> Mapping[int, Api]:
    """Every API of this package by its key."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_registry.items()))
