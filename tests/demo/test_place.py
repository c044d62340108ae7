"""Choice of the folder for the memory of the demonstration's simulated device."""

import os
import time
from pathlib import Path

import pytest

from pyvgpu import errors
from pyvgpu.demo import workspace

MIB = 1 << 20
SHM, TMP = Path("/dev/shm"), Path("/tmp")


@pytest.mark.parametrize(
    ("rooms", "expected"),
    [
        pytest.param([(SHM, 4096), (TMP, 9999)], (SHM, 120), id="the first with room"),
        pytest.param([(SHM, 64), (TMP, 9999)], (TMP, 120), id="a container's small /dev/shm"),
        pytest.param([(SHM, 64), (TMP, 170)], (TMP, 48), id="less where no place has room"),
    ],
)
def test_place_has_enough_space(rooms, expected):
    chosen, working = workspace.choose([(folder, free * MIB) for folder, free in rooms])
    assert (chosen, working // MIB) == expected


@pytest.mark.parametrize("rooms", [[], [(SHM, 80 * MIB)], [(SHM, 0)]])
def test_lack_of_space_is_reported(rooms):
    with pytest.raises(errors.UnavailableError, match="no folder with 88 MiB free"):
        workspace.choose(rooms)


def test_folder_is_removed_with_the_demonstration():
    with workspace.private_folder() as (folder, _):
        assert folder.is_dir()
        (folder / "file").touch()
    assert not folder.exists()


def test_only_folders_of_killed_demonstrations_are_removed():
    with workspace.private_folder() as (live, _):
        dead = live.parent / f"{workspace.PREFIX}test-{os.getpid()}"
        dead.mkdir()
        (dead / "state").touch()
        long_ago = time.time() - 2 * workspace.YOUNG_SECONDS
        for folder in (live, dead):
            os.utime(folder, (long_ago, long_ago))
        with workspace.private_folder() as (other, _):
            assert other.parent == live.parent
            assert not dead.exists()
            assert live.exists()
