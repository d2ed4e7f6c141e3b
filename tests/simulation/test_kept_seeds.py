"""A kept seed that catches its planted bug no more is found, told and rewritten."""

import importlib.util

import pytest

from tests.simulation.kept_seeds import catch, refresh
from tests.simulation.planted import is_noticed

PLANTS = '''
from tests.simulation.planted import registering

MUTANTS = {}
mutant = registering(MUTANTS)
VIOLATIONS = {}


@mutant(seed=9)
def fresh(patch):
    """Is caught by 9."""
    patch.setitem(VIOLATIONS, 9, "another hole")


@mutant(seed=5)
def stale(patch):
    """Is caught by 3 and not by 5; 2 goes wrong without it as well."""
    patch.setitem(VIOLATIONS, 1, "TypeError: no such argument")
    patch.setitem(VIOLATIONS, 3, "a hole")
'''


@pytest.fixture
def plants(tmp_path):
    path = tmp_path / "plants.py"
    path.write_text(PLANTS)
    spec = importlib.util.spec_from_file_location("plants", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.VIOLATIONS[2] = "a hole that nobody planted"
    return path, module.MUTANTS, module.VIOLATIONS.get


def test_a_stale_seed_is_told_and_left_alone(plants, capsys):
    path, mutants, run = plants

    assert refresh(mutants, run, is_write=False) == 1

    assert capsys.readouterr().out.splitlines() == [
        "stale: 5 is stale, 3 is not: a hole",
        "2 planted bugs, 1 stale seeds",
    ]
    assert path.read_text() == PLANTS


def test_a_stale_seed_is_rewritten(plants):
    path, mutants, run = plants

    assert refresh(mutants, run, is_write=True) == 0

    assert path.read_text() == PLANTS.replace("seed=5", "seed=3")


def test_nobody_notices(plants):
    _, mutants, run = plants

    assert catch(mutants["stale"], run, searched=3) is None
    assert refresh(mutants, lambda seed: None, is_write=True) == 2


def test_a_plant_that_fits_no_more_is_not_noticed():
    for violation in ("TypeError inside the broker: earlier", "AttributeError: _bump", None):
        assert not is_noticed(violation)
    for violation in ("AssertionError inside the broker: ", "a hole"):
        assert is_noticed(violation)
