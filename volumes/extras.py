"""Find a driver's files other than libraries: programs, firmware, and configuration files."""

from __future__ import annotations

import contextlib
import itertools
import platform
from pathlib import PurePath
from typing import TYPE_CHECKING

from pyvgpu.volumes import catalogue, elf, elf_facts, find, installation, root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def folders(within: root.Root) -> Iterator[Path]:
    """Yield the folders that are searched for these files, whether they exist or not."""
    for folder in catalogue.BINARY_FOLDERS:
        yield within.outside(folder)
    for share, patterns in itertools.product(catalogue.SHARE_FOLDERS, catalogue.DATA.values()):
        for pattern in patterns:
            yield within.outside(share) / PurePath(pattern).parent
    for folder in catalogue.FIRMWARE_FOLDERS:
        above = within.outside(folder).parent
        yield above
        with contextlib.suppress(OSError):
            yield from within.matching(above, "*")  # one for each release


class Extras:
    """The files of one driver release other than libraries; *remarks* lists what was left out."""

    def __init__(self, within: root.Root, release: str) -> None:
        self.remarks: list[str] = []
        self._within = within
        self._release = release

    def binaries(self, more: Iterable[str] = ()) -> Iterator[installation.InstalledFile]:
        """Yield the programs that the catalogue lists, and *more* names."""
        wanted = dict.fromkeys(sorted(more), "")
        for kind, names in catalogue.BINARIES.items():
            wanted |= dict.fromkeys(names, kind.value)
        for name, capability in wanted.items():
            for folder in catalogue.BINARY_FOLDERS:
                path = self._within.outside(folder) / name
                real = self._read(path)
                if real is not None and self._is_program(path, real):
                    yield installation.InstalledFile(real, "bin", name, capability=capability)
                    break

    def data(self) -> Iterator[installation.InstalledFile]:
        """Yield the files that are found by path; those in /etc take precedence."""
        given = set()
        for capability, patterns in catalogue.DATA.items():
            for pattern in patterns:
                for share, folder, path in self._matching(pattern):
                    place = f"{folder}/{path.name}"
                    real = self._read(path)
                    if real is None or place in given:
                        continue
                    given.add(place)
                    top = "etc" if share == "/etc" else "share"
                    yield installation.InstalledFile(
                        real, f"{top}/{folder}", path.name, capability=capability.value
                    )

    def firmware(self) -> Iterator[installation.InstalledFile]:
        """Yield the firmware of the release."""
        given = set()
        for folder in catalogue.FIRMWARE_FOLDERS:
            place = self._within.outside(folder.format(release=self._release))
            for pattern in catalogue.FIRMWARE:
                for path in self._listed(place, pattern):
                    real = self._read(path)
                    if real is not None and path.name not in given:
                        given.add(path.name)
                        yield installation.InstalledFile(
                            real, f"firmware/nvidia/{self._release}", path.name
                        )

    def _matching(self, pattern: str) -> Iterator[tuple[str, str, Path]]:
        """Yield the share folder, the folder in it and the path of each match of *pattern*."""
        wanted = PurePath(pattern.format(release=self._release))
        for share in catalogue.SHARE_FOLDERS:
            folder = self._within.outside(share) / wanted.parent
            for path in self._listed(folder, wanted.name):
                yield share, str(wanted.parent), path

    def _listed(self, folder: Path, pattern: str) -> list[Path]:
        try:
            return list(self._within.matching(folder, pattern))
        except OSError as exc:
            self._leave_out(folder, f"cannot be read: {exc.strerror}")
            return []

    def _read(self, path: Path) -> Path | None:
        """Return the regular file that *path* resolves to, if we may read it."""
        try:
            real = self._within.real(path)
            if not real.is_file():
                raise IsADirectoryError(0, "it is not a regular file")
            with real.open("rb"):
                pass
        except (FileNotFoundError, NotADirectoryError):
            if path.is_symlink():
                self._leave_out(path, "a dangling symbolic link")
            return None
        except OSError as exc:
            self._leave_out(path, f"cannot be read: {exc.strerror}")
            return None
        if not find.is_plain(path.name):
            self._leave_out(path, "no driver has a file of this name")
            return None
        return real

    def _is_program(self, path: Path, real: Path) -> bool:
        try:
            program = elf_facts.read(real)
        except (elf.ElfError, OSError) as exc:
            self._leave_out(path, str(exc).removeprefix(f"{root.shown(real)}: "))
            return False
        if program.machine == catalogue.MACHINES.get(platform.machine()) and program.bits == 64:
            return True
        self._leave_out(path, f"a {program.bits}-bit program for {program.machine}")
        return False

    def _leave_out(self, path: Path, reason: str) -> None:
        self.remarks.append(f"left out {root.shown(path)}: {reason}")
