"""Regular expressions from clients, matched in linear time.

Kafka reads ListTransactions' pattern as RE2 does (KIP-1152). Python's `re` backtracks: one pattern of a
client could hold the broker's only thread for ever. This is RE2's way: an automaton whose states are
sets of places in the pattern, built as far as the input needs them.

Understood: literals, `.`, classes with ranges, `[:alpha:]` and the like, `\\d \\w \\s`, groups, `|`,
`* + ? {n,m}` (also lazy, which is the same for a full match), `^ $ \\A \\z`, `\\Q...\\E`, `\\xhh`, a leading
`(?i)`. Left out and refused: word boundaries, Unicode classes, flags inside the pattern.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

REPEAT_MAX: Final = 1000  # as in RE2
_PLACES_MAX: Final = 5000
_DEPTH_MAX: Final = 100
_CACHED_STATES_MAX: Final = 2000

Ranges = tuple[tuple[int, int], ...]

_LAST: Final = 0x10FFFF
_DIGITS: Final[Ranges] = ((48, 57),)
_UPPER: Final[Ranges] = ((65, 90),)
_LOWER: Final[Ranges] = ((97, 122),)
_WORD: Final[Ranges] = _DIGITS + _UPPER + _LOWER + ((95, 95),)
_SPACE: Final[Ranges] = ((9, 10), (12, 13), (32, 32))
_NOT_NEWLINE: Final[Ranges] = ((0, 9), (11, _LAST))
_NAMED: Final[dict[str, Ranges]] = {
    "alnum": _DIGITS + _UPPER + _LOWER,
    "alpha": _UPPER + _LOWER,
    "digit": _DIGITS,
    "lower": _LOWER,
    "upper": _UPPER,
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "word": _WORD,
    "xdigit": (*_DIGITS, (65, 70), (97, 102)),
}
_CONTROLS: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}


class PatternError(ValueError):
    """Not a pattern that is understood here."""


def complement(ranges: Ranges) -> Ranges:
    """Every code point that is not in `ranges`."""
    result = []
    start = 0
    for low, high in sorted(ranges):
        if low > start:
            result.append((start, low - 1))
        start = max(start, high + 1)
    if start <= _LAST:
        result.append((start, _LAST))
    return tuple(result)


class _Place(NamedTuple):
    """One instruction: take a character of `ranges`, or go on at each of `then` without one."""

    then: tuple[int, ...]
    ranges: Ranges | None = None
    needs_begin: bool = False
    needs_end: bool = False


# A node writes its instructions for "and then go on at `then`" and gives the place to enter it.
_Node = Callable[["_Program", int], int]


class _Program:
    def __init__(self) -> None:
        self.places: list[_Place] = []

    def add(self, place: _Place) -> int:
        if len(self.places) >= _PLACES_MAX:
            raise PatternError("pattern is too large")
        self.places.append(place)
        return len(self.places) - 1


class Pattern:
    """A compiled pattern; `fullmatch` takes time in proportion to its text."""

    def __init__(self, text: str) -> None:
        program = _Program()
        self._match = program.add(_Place(()))
        entry = _Parser(text).parse()(program, self._match)
        self._places = program.places
        self._states: dict[frozenset[int], int] = {}
        self._sets: list[frozenset[int]] = []
        self._moves: list[dict[str, int]] = []
        self._accepting: list[bool] = []
        self._start = self._reach({entry}, at_begin=True)
        self._takes_nothing = self._match in self._reach({entry}, at_begin=True, at_end=True)

    def fullmatch(self, text: str) -> bool:
        """Whether the whole of `text` matches."""
        if not text:
            return self._takes_nothing
        if len(self._sets) > _CACHED_STATES_MAX:
            for cache in (self._states, self._sets, self._moves, self._accepting):
                cache.clear()
        state = self._number(self._start)
        moves = self._moves
        for character in text:
            following = moves[state].get(character)
            state = self._move(state, character) if following is None else following
        return self._accepting[state]

    def _number(self, places: frozenset[int]) -> int:
        number = self._states.get(places)
        if number is None:
            number = self._states[places] = len(self._sets)
            self._sets.append(places)
            self._moves.append({})
            self._accepting.append(self._match in self._reach(set(places), at_end=True))
        return number

    def _move(self, state: int, character: str) -> int:
        code = ord(character)
        reached: set[int] = set()
        for index in self._sets[state]:
            place = self._places[index]
            if place.ranges and any(low <= code <= high for low, high in place.ranges):
                reached.update(place.then)
        number = self._number(self._reach(reached))
        self._moves[state][character] = number
        return number

    def _reach(
        self, places: set[int], *, at_begin: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """The places that can be reached from `places` without a character."""
        waiting = list(places)
        found = set(waiting)
        while waiting:
            place = self._places[waiting.pop()]
            if place.ranges is not None:
                continue
            if (place.needs_begin and not at_begin) or (place.needs_end and not at_end):
                continue
            new = [index for index in place.then if index not in found]
            found.update(new)
            waiting += new
        return frozenset(found)


class _Parser:
    def __init__(self, text: str) -> None:
        self._folds = text.startswith("(?i)")
        self._text = text[4:] if self._folds else text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise PatternError("unmatched )")
        return node

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if not self._peek(text):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("pattern ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> _Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]

        def emit(program: _Program, then: int) -> int:
            return program.add(_Place(tuple(branch(program, then) for branch in branches)))

        return emit

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts += self._quoted() if self._take("\\Q") else [self._repeated()]

        def emit(program: _Program, then: int) -> int:
            for part in reversed(parts):
                then = part(program, then)
            return then

        return emit

    def _quoted(self) -> list[_Node]:
        end = self._text.find("\\E", self._at)
        literal = self._text[self._at : end if end >= 0 else None]
        self._at = end + 2 if end >= 0 else len(self._text)
        return [self._characters(((ord(c), ord(c)),)) for c in literal]

    def _repeated(self) -> _Node:
        node = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return node
        self._take("?")
        if self._bounds() is not None:
            raise PatternError("repeated repetition")
        return _repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """The repetition at this place; braces that are none are literals, as in RE2."""
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        end = self._text.find("}", self._at)
        if not self._peek("{") or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not (low.isascii() and low.isdigit()) or (high and not high.isdigit()):
            return None
        self._at = end + 1
        most = int(low) if not comma else int(high) if high else None
        if int(low) > REPEAT_MAX or (most is not None and not int(low) <= most <= REPEAT_MAX):
            raise PatternError("bad repetition count")
        return int(low), most

    def _atom(self) -> _Node:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._characters(self._class())
            case ".":
                return self._characters(_NOT_NEWLINE)
            case "^":
                return lambda program, then: program.add(_Place((then,), needs_begin=True))
            case "$":
                return lambda program, then: program.add(_Place((then,), needs_end=True))
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternError("nothing to repeat")
        return self._characters(((ord(character), ord(character)),))

    def _group(self) -> _Node:
        if self._take("?") and not self._take(":"):
            if not (self._take("P<") or self._take("<")):
                raise PatternError("unknown kind of group")
            end = self._text.find(">", self._at)
            if end < 0 or not self._text[self._at : end].isidentifier():
                raise PatternError("bad group name")
            self._at = end + 1
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise PatternError("groups are nested too deep")
        node = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            raise PatternError("missing )")
        return node

    def _escape(self) -> _Node:
        if self._take("A"):
            return lambda program, then: program.add(_Place((then,), needs_begin=True))
        if self._take("z"):
            return lambda program, then: program.add(_Place((then,), needs_end=True))
        return self._characters(self._escaped())

    def _escaped(self) -> Ranges:
        """What a backslash and the characters behind it stand for, inside a class or outside."""
        character = self._next()
        match character:
            case "d" | "D" | "w" | "W" | "s" | "S":
                ranges = {"d": _DIGITS, "w": _WORD, "s": _SPACE}[character.lower()]
                return ranges if character.islower() else complement(ranges)
            case "x":
                return self._hexadecimal()
        if character in _CONTROLS:
            return ((_CONTROLS[character],) * 2,)
        if character.isascii() and not character.isalnum():
            return ((ord(character), ord(character)),)
        raise PatternError(f"unknown escape \\{character}")

    def _hexadecimal(self) -> Ranges:
        if self._take("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at : max(end, self._at)]
            self._at = end + 1
        else:
            digits = self._next() + self._next()
        try:
            code = int(digits, 16)
        except ValueError:
            raise PatternError("bad hexadecimal escape") from None
        if not digits.isalnum() or code > _LAST:
            raise PatternError("bad hexadecimal escape")
        return ((code, code),)

    def _class(self) -> Ranges:
        negated = self._take("^")
        ranges: Ranges = ()
        first = True
        while first or not self._take("]"):
            first = False
            item = self._class_item()
            if self._peek("-") and not self._peek("-]"):
                self._at += 1
                last = self._class_item()
                if len(item) != 1 or len(last) != 1 or item[0][0] > last[0][1]:
                    raise PatternError("bad range in a class")
                item = ((item[0][0], last[0][1]),)
            ranges += item
        if self._folds:
            ranges = _folded(ranges)
        return complement(ranges) if negated else ranges

    def _class_item(self) -> Ranges:
        if self._take("[:"):
            negated = self._take("^")
            end = self._text.find(":]", self._at)
            name = self._text[self._at : max(end, self._at)]
            if name not in _NAMED:
                raise PatternError(f"unknown class {name}")
            self._at = end + 2
            return complement(_NAMED[name]) if negated else _NAMED[name]
        character = self._next()
        if character == "\\":
            return self._escaped()
        return ((ord(character), ord(character)),)

    def _characters(self, ranges: Ranges) -> _Node:
        accepted = _folded(ranges) if self._folds else ranges
        return lambda program, then: program.add(_Place((then,), accepted))


def _folded(ranges: Ranges) -> Ranges:
    """With both cases of every ASCII letter."""
    extra: list[tuple[int, int]] = []
    for low, high in ranges:
        for (first, last), shift in ((_UPPER[0], 32), (_LOWER[0], -32)):
            start, end = max(low, first), min(high, last)
            if start <= end:
                extra.append((start + shift, end + shift))
    return ranges + tuple(extra)


def _repeat(node: _Node, least: int, most: int | None) -> _Node:
    def emit(program: _Program, then: int) -> int:
        entry = then
        if most is None:
            # The loop's fork must exist before its body can return to it.
            fork = program.add(_Place(()))
            program.places[fork] = _Place((node(program, fork), then))
            entry = fork
        else:
            for _ in range(most - least):
                entry = program.add(_Place((node(program, entry), then)))
        for _ in range(least):
            entry = node(program, entry)
        return entry

    return emit
