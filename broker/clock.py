"""Time as the broker's pure parts receive it."""

from typing import NamedTuple


class Now(NamedTuple):
    """One instant on two clocks.

    `wall_ms` only labels records for people and for lookups by time. Every timeout, lease and expiry
    counts `steady_ms`: the broker's accumulated running time, which goes on after a restart where the
    journal ended and never jumps, so that a stepped wall clock aborts nothing.
    """

    wall_ms: int
    steady_ms: int
