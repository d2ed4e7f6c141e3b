"""The list fits the sources, and one planted bug is found from end to end; the rest by command."""

from dataclasses import replace

import pytest

from tests.mutation.mutants import MUTANTS
from tests.mutation.planting import ROOT, Run, copy_tree, judge, run_mutant, run_tests

SMOKE = "whatever is open is committed"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return copy_tree(tmp_path_factory.mktemp("mutation") / "tree")


@pytest.fixture(scope="module")
def smoke():
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == SMOKE]
    return mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_source(mutant):
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new
    assert all((ROOT / test).exists() for test in mutant.tests if test.startswith("tests/"))


@pytest.mark.slow
def test_a_planted_bug_is_found_and_a_healthy_tree_passes(tree, smoke):
    assert list(judge(tree, [smoke])) == [(smoke, "killed")]
    assert run_tests(tree, smoke.tests).code == 0


@pytest.mark.slow
def test_tests_that_fail_without_a_bug_kill_nothing(tree, smoke):
    (tree / "tests" / "test_unsound.py").write_text("def test(): assert False\n")
    unsound = replace(smoke, tests=("tests/test_unsound.py",))

    assert list(judge(tree, [unsound])) == [(unsound, "unsound")]
    assert run_mutant(tree, unsound) == "killed"  # what it would have been taken for


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", ["pytest-timeout", "us"])
def test_tests_that_hang_are_told_apart(tree, ended_by):
    limit = "@pytest.mark.timeout(0.5)" if ended_by == "pytest-timeout" else ""
    body = f"import threading\nimport pytest\n{limit}\ndef test(): threading.Event().wait()\n"
    (tree / "tests" / "test_hanging.py").write_text(body)

    run = run_tests(tree, ("tests/test_hanging.py",), 60 if limit else 5)

    assert run.verdict == "killed (hung)"


def test_what_pytest_cannot_run_is_no_kill():
    assert Run(4, "").verdict == "broken"
    assert Run(0, "").verdict == "survived"
