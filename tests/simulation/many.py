"""Many histories on all cores."""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from tests.simulation.history import Result, run_history

AT_ONCE = 50


def seeds_of(words: str) -> range:
    """`A:B` or `A:B:STEP`, as in a slice: B itself is not in it."""
    seeds = range(*(int(word) for word in words.split(":")))
    if words.count(":") == 0 or not seeds:
        raise ValueError(f"{words} is no A:B[:STEP] with seeds in it")
    return seeds


@contextmanager
def workers(count: int | None = None) -> Iterator[ProcessPoolExecutor]:
    count = count or os.cpu_count()
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield pool


def run_block(seeds: range) -> tuple[list[Result], int]:
    """The histories that went wrong, and how many transactions there were."""
    results = [run_history(seed) for seed in seeds]
    return [r for r in results if r.violation], sum(r.transactions for r in results)


def run_seeds(pool: ProcessPoolExecutor, seeds: range) -> tuple[list[Result], int]:
    """The same on all cores; says what goes wrong as soon as it is known."""
    blocks = [seeds[n : n + AT_ONCE] for n in range(0, len(seeds), AT_ONCE)]
    failed, transactions = [], 0
    for violations, count in pool.map(run_block, blocks):
        for result in violations:
            sys.stdout.write(f"seed {result.seed}: {result.violation}\n")
            sys.stdout.flush()
        failed += violations
        transactions += count
    return failed, transactions


def main(words: str) -> int:
    seeds = seeds_of(words)
    sys.stdout.write(f"seeds {seeds[0]} to {seeds[-1]}, step {seeds.step}\n")
    sys.stdout.flush()
    with workers() as pool:
        failed, transactions = run_seeds(pool, seeds)
    sys.stdout.write(
        f"{len(seeds)} histories, {transactions} transactions, {len(failed)} violations\n"
    )
    return 1 if failed else 0
