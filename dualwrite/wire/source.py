"""Python source that is written line by line, then turned into a function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any


class Source:
    """Lines under construction, with unique names and the objects they refer to."""

    def __init__(self, header: str, scope: dict[str, Any]) -> None:
        self._lines = [header]
        self._depth = 1
        self._names = 0
        self._scope = scope

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, prefix: str = "v") -> str:
        """A name that nothing else in this function has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, value: Any, prefix: str = "c") -> str:
        """A name under which the function sees `value`."""
        name = self.name(prefix)
        self._scope[name] = value
        return name

    def layout(self, codes: str, method: str) -> str:
        """A name for a method of the big-endian struct with this format."""
        name = f"{method}_{codes}".replace("?", "Z")
        self._scope.setdefault(name, getattr(Struct(">" + codes), method))
        return name

    def function(self, name: str, title: str) -> Callable[..., Any]:
        """The finished function; `title` shows up in tracebacks."""
        # The text comes from our own class definitions only, never from the network.
        exec(compile("\n".join(self._lines), f"<{title}>", "exec"), self._scope)
        made: Callable[..., Any] = self._scope[name]
        return made

    def text(self) -> str:
        return "\n".join(self._lines)
