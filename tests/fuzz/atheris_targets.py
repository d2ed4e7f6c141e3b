"""Coverage-guided fuzzing of the same targets, for as long as one likes.

    pip install atheris
    python -m tests.fuzz.atheris_targets record_batch corpus/ -max_total_time=3600

Without arguments it lists the targets. Not part of the test suite, and atheris is no dependency.
"""

import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["dualwrite"]):
    from tests.fuzz.targets import TARGETS
    from tests.fuzz.test_parsers import HONEST

SEEDS = 64


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit("usage: atheris_targets TARGET [CORPUS] [-option=…]\n" + "\n".join(TARGETS))
    name = sys.argv.pop(1)
    honest = [HONEST[name](Random(seed)) for seed in range(SEEDS)]
    target = TARGETS[name]
    for data in honest:
        target(data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        """Now and then an honest message in place of the corpus's, so that checksums are right."""
        random = Random(seed)
        start = random.choice(honest) if random.random() < 0.1 else data
        return bytes(atheris.Mutate(start, max_size))

    atheris.Setup(sys.argv, target, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
