"""What a planted bug is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A piece of text, which must occur exactly once in its file, what takes its place, and the tests
    that must find it.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
