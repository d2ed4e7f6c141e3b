"""A place for disk images, on a machine on which they can be mounted."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.images import make_image, mounted


@pytest.fixture(scope="module")
def memory():
    """A directory in memory, which every account may enter; images in it can be mounted."""
    if os.geteuid() != 0 or not Path("/dev/shm").is_dir():
        pytest.skip("disk images need root and /dev/shm")
    directory = Path("/dev/shm") / f"dualwrite-power-{os.getpid()}-{random.randrange(10**9)}"
    directory.mkdir(mode=0o755)
    try:
        _try_out(directory)
        yield directory
    finally:
        shutil.rmtree(directory)


def _try_out(directory):
    try:
        make_image(directory / "probe")
        with mounted(directory / "probe", directory / "mount"):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"an ext4 image cannot be made and mounted here: {error}")
