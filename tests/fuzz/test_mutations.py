"""Almost right bytes by a plain loop: nothing is recorded or shrunk, so that far more are tried.

    pytest -s tests/fuzz/test_mutations.py -k record_batch
    SEED=7 pytest tests/fuzz/test_mutations.py      the same bytes again

A failure names the target, the seed and the bytes. The budget is a number of executions, so that a slow
machine tries as much as a fast one; `--long` tries 200,000 of each target.
"""

import os
import random
import tracemalloc

import pytest

from tests.fuzz.samples import damage
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_parsers import HONEST

EXECUTIONS = 20_000
# What checksums, decompression, proofs of passwords and screens of text cost is not the parser's doing.
SLOW = ("record_batch", "codec", "sasl_server", "sasl_client", "shown_record")
EXECUTIONS_OF_SLOW = 5_000
EXECUTIONS_LONG = 200_000
HONEST_SAMPLES = 256
POOL_MAX = 1_024
BYTES_MAX = 4_096
MEASURED_EVERY = 50
"""Following allocations makes a parser many times slower."""
SPARE_BYTES = 64 << 10
# These may hold what comes out of the compression, up to their own limit, and not only what came in.
INFLATING = {"codec", "record_batch"}


def spliced(data, other, chance):
    """The beginning of one and the end of another."""
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def mutations(name, chance):
    """Endlessly bytes that were honest once: each is a mutation of an honest or of a mutated one.

    Half of them are one step away from honest: after a few steps most headers are refused.
    """
    honest = [HONEST[name](chance) for _ in range(HONEST_SAMPLES)]
    pool = list(honest)
    while True:
        data = chance.choice(honest if chance.random() < 0.5 else pool)
        if chance.random() < 0.2:
            data = spliced(data, chance.choice(pool), chance)
        data = damage(data, chance)[:BYTES_MAX]
        yield data
        if len(pool) < POOL_MAX:
            pool.append(data)
        else:
            pool[chance.randrange(POOL_MAX)] = data


def bytes_held(target, data):
    """Run it; gives the most bytes that it held at once."""
    tracemalloc.start()
    try:
        target(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_memory_is_bounded(target, data):
    allowed = 4 * len(data) + SPARE_BYTES
    if bytes_held(target, data) > allowed:
        # The first message of a version compiles its codec, which is kept and no cost of these bytes.
        held = bytes_held(target, data)
        assert held <= allowed, f"{held} bytes are held, {allowed} are allowed"


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.timeout(7200)
def test_mutated_bytes_end_in_a_value_or_a_typed_error(name, request):
    given = request.config.getoption("--seed", None)
    seed = int(os.environ.get("SEED", random.randrange(10**6)) if given is None else given)
    print(f"seed {seed}")
    executions = EXECUTIONS_OF_SLOW if name in SLOW else EXECUTIONS
    if request.config.getoption("--long"):
        executions = EXECUTIONS_LONG
    target = TARGETS[name]
    chance = random.Random(f"{name} {seed}")
    for number, data in zip(range(executions), mutations(name, chance), strict=False):
        try:
            if number % MEASURED_EVERY or name in INFLATING:
                target(data)
            else:
                assert_memory_is_bounded(target, data)
        except Exception as error:
            raise AssertionError(f"seed {seed}, execution {number}: {data!r}") from error
    print(f"{executions} executions")
