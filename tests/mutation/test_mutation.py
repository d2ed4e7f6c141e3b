"""The list fits the sources, and one planted bug is found from end to end; the rest by command."""

import pytest

from tests.mutation.mutants import MUTANTS
from tests.mutation.planting import ROOT, copy_tree, run_mutant, run_tests

SMOKE = "whatever is open is committed"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_source(mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new
    assert all((ROOT / test).exists() for test in mutant.tests if test.startswith("tests/"))


@pytest.mark.slow
def test_a_planted_bug_is_found_and_a_healthy_tree_passes(tmp_path):
    tree = copy_tree(tmp_path / "tree")
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == SMOKE]

    assert run_mutant(tree, mutant) == "killed"
    assert run_tests(tree, mutant.tests) == 0
