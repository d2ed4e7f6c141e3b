"""Regular expressions from clients, matched in time proportional to the text.

Clients may send patterns (KIP-848 subscriptions, ListTransactions). The standard library's engine can
take exponential time on some, on the one thread that serves everybody; this one walks all
alternatives at once. Its syntax is the part of RE2's that names need: literals, `.`, classes,
groups, `|`, `* + ? {m,n}`, anchors and `(?i)`. A pattern must match the whole text.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_STATES_MAX: Final = 2_000
_LENGTH_MAX: Final = 1_000
_DEPTH_MAX: Final = 50
_REPEAT_MAX: Final = 1_000
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}

Test = Callable[[str], bool]


class PatternError(ValueError):
    """Not a pattern that this engine can run."""


@dataclass(slots=True, eq=False)
class _State:
    """Consumes one character that passes `test`, or none if there is no test.

    With an anchor it lets through only at that edge of the text.
    """

    test: Test | None = None
    anchor: str = ""
    next: list["_State"] = field(default_factory=list)


@dataclass(slots=True)
class _Part:
    """A piece of the automaton with one way in and one way out."""

    start: _State
    end: _State


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        self._part = _Parser(text).parse()

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        last = len(text)
        current = _reachable([self._part.start], True, last == 0)
        for position, character in enumerate(text, 1):
            passed = [
                s for state in current if state.test and state.test(character) for s in state.next
            ]
            current = _reachable(passed, False, position == last)
            if not current:
                return False
        return self._part.end in current


def _reachable(states: list[_State], is_start: bool, is_end: bool) -> set[_State]:
    closed = "" if is_start and is_end else "$" if is_start else "^" if is_end else "^$"
    found = set(states)
    todo = list(states)
    while todo:
        state = todo.pop()
        if state.test is None and not (state.anchor and state.anchor in closed):
            for following in state.next:
                if following not in found:
                    found.add(following)
                    todo.append(following)
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > _LENGTH_MAX:
            raise PatternError("the pattern is too long")
        self._folds_case = text.startswith("(?i)")
        self._text = text[4:] if self._folds_case else text
        self._at = 0
        self._depth = 0
        self._states = 0

    def parse(self) -> _Part:
        part = self._alternatives()
        if self._at < len(self._text):
            raise PatternError(f"unexpected {self._text[self._at]!r} at {self._at}")
        return part

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise PatternError("the pattern ends too early")
        self._at += 1
        return character

    def _state(self, test: Test | None = None) -> _State:
        self._states += 1
        if self._states > _STATES_MAX:
            raise PatternError("the pattern is too large")
        return _State(test)

    def _empty(self) -> _Part:
        state = self._state()
        return _Part(state, state)

    def _alternatives(self) -> _Part:
        options = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            options.append(self._sequence())
        if len(options) == 1:
            return options[0]
        start, end = self._state(), self._state()
        for option in options:
            start.next.append(option.start)
            option.end.next.append(end)
        return _Part(start, end)

    def _sequence(self) -> _Part:
        part = self._empty()
        while self._peek() not in ("", "|", ")"):
            following = self._repeated()
            part.end.next.append(following.start)
            part = _Part(part.start, following.end)
        return part

    def _repeated(self) -> _Part:
        begin = self._at
        part = self._atom()
        end = self._at
        bounds = self._bounds()
        if bounds is None:
            return part
        if self._peek() == "?":
            self._at += 1  # a lazy repetition matches the same texts
        after = self._at
        least, most = bounds
        chain = self._empty()
        copies = least if most is None else most
        exits = []
        for number in range(copies):
            copy = self._again(begin, end)
            if number >= least:
                exits.append(chain.end)
            chain.end.next.append(copy.start)
            chain = _Part(chain.start, copy.end)
        last = self._state()
        if most is None:
            copy = self._again(begin, end)
            loop = self._state()
            chain.end.next.append(loop)
            loop.next += [copy.start, last]
            copy.end.next.append(loop)
        else:
            chain.end.next.append(last)
        for state in exits:
            state.next.append(last)
        self._at = after
        return _Part(chain.start, last)

    def _again(self, begin: int, end: int) -> _Part:
        """Another copy of an atom: states can't be shared between repetitions."""
        self._at = begin
        part = self._atom()
        if self._at != end:
            raise PatternError("a repetition that can't be read")
        return part

    def _bounds(self) -> tuple[int, int | None] | None:
        sign = self._peek()
        if sign in ("*", "+", "?") and sign:
            self._at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        if sign != "{":
            return None
        close = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : close].partition(",")
        if close < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            return None  # a brace that stands for itself
        self._at = close + 1
        least = int(low)
        most = int(high) if high else (None if comma else least)
        if max(least, most or 0) > _REPEAT_MAX or (most is not None and most < least):
            raise PatternError("a repetition with bad bounds")
        return least, most

    def _atom(self) -> _Part:
        character = self._take()
        if character == "(":
            return self._group()
        if character in "*+?":
            raise PatternError(f"nothing to repeat at {self._at - 1}")
        if character == "^" or character == "$":
            edge, behind = self._state(), self._state()
            edge.anchor = character
            edge.next.append(behind)
            return _Part(edge, behind)
        if character == "[":
            return self._one(self._class())
        if character == "\\":
            return self._one(self._escape())
        if character == ".":
            return self._one(lambda c: c != "\n")
        return self._one(self._literal(character))

    def _group(self) -> _Part:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise PatternError("groups are nested too deeply")
        if self._peek() == "?":
            if self._text[self._at : self._at + 2] != "?:":
                raise PatternError("this kind of group is not supported")
            self._at += 2
        part = self._alternatives()
        if self._take() != ")":
            raise PatternError("a group without end")
        self._depth -= 1
        return part

    def _one(self, test: Test) -> _Part:
        start, end = self._state(test), self._state()
        start.next.append(end)
        return _Part(start, end)

    def _literal(self, wanted: str) -> Test:
        if self._folds_case:
            folded = wanted.casefold()
            return lambda c: c.casefold() == folded
        return lambda c: c == wanted

    def _escape(self) -> Test:
        character = self._take()
        if character in _ESCAPES:
            return self._literal(_ESCAPES[character])
        kinds: dict[str, Test] = {
            "d": lambda c: c in "0123456789",
            "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
            "s": lambda c: c in " \t\n\r\f",
        }
        kind = kinds.get(character.lower())
        if kind is not None:
            if character.islower():
                return kind
            return lambda c: not kind(c)
        if character.isalnum():
            raise PatternError(f"\\{character} is not supported")
        return self._literal(character)

    def _class(self) -> Test:
        is_negated = self._peek() == "^"
        if is_negated:
            self._at += 1
        tests: list[Test] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            tests.append(self._class_item())
        self._at += 1
        return lambda c: any(test(c) for test in tests) is not is_negated

    def _class_item(self) -> Test:
        low = self._take()
        if low == "[" and self._peek() == ":":
            raise PatternError("named classes are not supported")
        if low == "\\":
            return self._escape()
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return self._literal(low)
        self._at += 1
        high = self._take()
        if high == "\\":
            high = self._take()
        if high < low:
            raise PatternError(f"{low}-{high} is not a range")
        if self._folds_case:
            return lambda c: low <= c.lower() <= high or low <= c.upper() <= high
        return lambda c: low <= c <= high
