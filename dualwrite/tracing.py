"""Spans and trace context for whoever has OpenTelemetry installed (extra `[otel]`); else nothing.

A dual write is one span from the begin of its block to the end of both sides, with a part for each
thing that takes time. Records carry its context in their headers (W3C `traceparent`), so that what a
consumer does with them belongs to the same trace. A bare producer's records carry the caller's.

Nothing here may raise: an error between COMMIT and the Kafka commit would be taken for the
database's, and whoever collects spans must not be able to decide about data.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from dualwrite.content import HeadersGiven, as_headers
from dualwrite.wire.records import Headers

logger = logging.getLogger(__name__)

_KAFKA: Final = {"messaging.system": "kafka"}
_UNTRACED: Final = nullcontext()


def is_on() -> bool:
    """Whether somebody collects spans.

    Only an application that has imported OpenTelemetry and given it an SDK pays for it.
    """
    if "opentelemetry.trace" not in sys.modules:
        return False
    from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


class Trace:
    """The span of one dual write; every method does nothing where nobody traces."""

    __slots__ = ("_span",)

    def __init__(self) -> None:
        self._span = _start("dual write", None, {}) if is_on() else None

    def part(self, name: str, **attributes: str | int) -> AbstractContextManager[None]:
        """A part of the dual write; what runs inside sees it as the current span."""
        if self._span is None:
            return _UNTRACED
        return _current(name, self._span, attributes)

    def carry(self, headers: HeadersGiven) -> HeadersGiven:
        """The headers of a record with this span's context added."""
        if self._span is None:
            return headers
        from opentelemetry import trace

        return _with_context(as_headers(headers), trace.set_span_in_context(self._span))

    def end(self, error: BaseException | None = None, **attributes: str) -> None:
        """The dual write has come to its end; calling it again changes nothing."""
        if self._span is not None and self._span.is_recording():
            _end(self._span, error, attributes)


def carry(headers: Headers | None) -> Headers | None:
    """The headers of a record with the caller's context added, if there is one."""
    from opentelemetry import trace

    if trace.get_current_span().get_span_context().is_valid:
        return _with_context(headers or (), None)
    return headers


def span(name: str, **attributes: str) -> AbstractContextManager[None]:
    """One call of a producer."""
    return _current(name, None, attributes) if is_on() else _UNTRACED


@contextmanager
def _current(name: str, parent: Any, attributes: dict[str, Any]) -> Iterator[None]:
    from opentelemetry import context, trace

    started = _start(name, parent, attributes)
    if started is None:
        yield
        return
    token = context.attach(trace.set_span_in_context(started))
    error = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        context.detach(token)
        _end(started, error, {})


def _start(name: str, parent: Any, attributes: dict[str, Any]) -> Any:
    from opentelemetry import trace

    try:
        within = None if parent is None else trace.set_span_in_context(parent)
        return trace.get_tracer("dualwrite").start_span(
            name, within, attributes=_KAFKA | _named(attributes)
        )
    except Exception:
        logger.exception("a span could not be started")
        return None


def _end(started: Any, error: BaseException | None, attributes: dict[str, Any]) -> None:
    from opentelemetry import trace

    try:
        started.set_attributes(_named(attributes))
        if error is not None:
            started.record_exception(error)
            started.set_status(trace.StatusCode.ERROR, type(error).__name__)
        started.end()
    except Exception:
        logger.exception("a span could not be ended")


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    return {f"dualwrite.{name}": value for name, value in attributes.items()}


def _with_context(headers: Headers, within: Any) -> Headers:
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier, within)
    given = {name for name, _ in headers}
    added = [(name, text.encode()) for name, text in carrier.items() if name not in given]
    return [*headers, *added]
