"""The files that a container of a run gets: hard links to the run's own, in a folder of theirs.

    <reservation>/container/quota      mounted read-only, as /etc/pyvgpu
                           /usage      mounted writable, as /run/pyvgpu/usage
                           /clock/0    mounted read-only, as /run/pyvgpu-clock

The folder has neither the run's socket nor its command line: a container must not change its own
quota. The arbiter re-creates its clocks, so :meth:`ContainerFiles.link_clock` is called again and
again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import names

if TYPE_CHECKING:
    from pathlib import Path

CLOCK_FOLDER = "clock"


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerFiles:
    """The container's folder of the run that is reserved in the folder *reservation*."""

    reservation: Path

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.reservation / names.CONTAINER_FOLDER

    def make(self, *, any_user: bool = False) -> None:
        """Create the files; *any_user*: the container's programs may have another user's id."""
        (self.folder / CLOCK_FOLDER).mkdir(mode=0o755, parents=True)
        for folder in (self.folder, self.folder / CLOCK_FOLDER):
            folder.chmod(0o755)  # whatever the umask
        for name in (names.QUOTA_FILE, names.USAGE_FILE):
            (self.folder / name).hardlink_to(self.reservation / name)
        if any_user:
            (self.folder / names.USAGE_FILE).chmod(0o666)

    def link_clock(self) -> None:
        """Link the arbiter's current clock of the device, if there is one.

        Without it the container has its hard share.
        """
        place = self.folder / CLOCK_FOLDER / "0"
        with contextlib.suppress(OSError):  # no clock yet, or in another file system
            clock = (self.reservation / f"{names.CLOCK_LINK}0").readlink()
            with contextlib.suppress(FileNotFoundError):
                if place.samefile(clock):
                    return
            draft = place.with_name(".0")
            draft.unlink(missing_ok=True)
            draft.hardlink_to(clock)
            draft.replace(place)
