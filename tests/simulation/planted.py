"""Bugs to plant: what a planted bug is, how it is registered, and which histories count as noticing it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Plant = Callable[[Any], None]

# What a plant raises itself when the code that it patches has changed: nobody has noticed a bug then.
_MISFITS = ("TypeError", "AttributeError", "NameError", "ImportError")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug: what it is, how it gets in, and a history that notices."""

    name: str
    plant: Plant
    seed: int


class Register(Protocol):
    def __call__(self, seed: int) -> Callable[[Plant], Plant]: ...


def registering(mutants: dict[str, Mutant]) -> Register:
    """The decorator that puts a plant and its seed into `mutants`."""

    def mutant(seed: int) -> Callable[[Plant], Plant]:
        def register(plant: Plant) -> Plant:
            name = plant.__name__
            assert name not in mutants
            mutants[name] = Mutant(name, plant, seed)
            return plant

        return register

    return mutant


def is_noticed(violation: str | None) -> bool:
    """Whether a history has noticed a bug, and not just stumbled over a plant that fits no more."""
    return violation is not None and not violation.startswith(_MISFITS)
