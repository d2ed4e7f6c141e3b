"""Every planted bug, each with the tests that must find it."""

from tests.mutation import broker_mutants, writer_mutants

MUTANTS = broker_mutants.MUTANTS + writer_mutants.MUTANTS
