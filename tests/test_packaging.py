"""The wheel must hold every package on disk, and nothing under a generic name."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]


def test_declared_packages_are_the_packages_on_disk():
    on_disk = set()
    for name, folder in SETUPTOOLS["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            below = init.parent.relative_to(ROOT / folder).parts
            on_disk.add(".".join((name, *below)))

    assert set(SETUPTOOLS["packages"]) == on_disk


def test_symlinks_repeat_the_package_dir_mapping():
    for name, folder in SETUPTOOLS["package-dir"].items():
        in_package = ROOT / Path(*name.split("."))
        assert in_package.resolve() == (ROOT / folder).resolve()
