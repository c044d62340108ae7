"""Check that the loader would find the shim, and no other libcuda, for a program.

The run's folder is the first in LD_LIBRARY_PATH. A DT_RPATH of the program, which the loader
searches before it, or a folder in the user's own LD_LIBRARY_PATH may have another driver. Then it
is not clear which one the user wants, so we report an error instead of choosing. Only the program,
and the interpreter of a script, are checked, not libraries that are loaded later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_WANTED = (names.LIBCUDA, names.LIBNVIDIA_ML)
_LONGEST_LINE = 4096


def check_not_nested(environment: Mapping[str, str]) -> None:
    """Refuse to run inside another run, whose shim would be mistaken for the driver."""
    for folder in _library_path(environment):
        if _is_run_folder(folder):
            raise errors.UsageError(
                f"LD_LIBRARY_PATH names {folder}, the shim of another `pyvgpu run`: "
                "a run inside a run is not possible; start it from outside, or divide the "
                "outer quota among the programs themselves"
            )


def check_no_rival(
    program: Path, environment: Mapping[str, str], driver: Collection[Path]
) -> None:
    """Refuse if *program* would load, or is meant to load, another driver than *driver*.

    *driver* are the files of the driver that the run mirrors.
    """
    own = {_identity(path) for path in driver}
    for entry in environment.get("LD_PRELOAD", "").replace(":", " ").split():
        if Path(entry).name.startswith(("libcuda.so", "libnvidia-ml.so")):
            raise errors.UsageError(
                f"LD_PRELOAD names {entry}, which would be loaded before the shim: remove it"
            )
    for folder in _library_path(environment):
        _check_folder(folder, "LD_LIBRARY_PATH", own)
    for binary in _binaries(program, environment):
        for kind, folder in _search_folders(binary):
            # An old DT_RPATH is searched before LD_LIBRARY_PATH: there even our own driver
            # would be found bare.
            _check_folder(folder, f"the {kind} of {binary}", own if kind != "DT_RPATH" else set())


def _check_folder(folder: Path, named_by: str, own: set[tuple[int, int] | None]) -> None:
    for variant in (folder, *folder.glob("glibc-hwcaps/*")):
        for name in _WANTED:
            identity = _identity(variant / name)
            if identity is not None and identity not in own:
                raise errors.UsageError(
                    f"{named_by} names {folder}, which has a {name} of its own: the program "
                    "might not load the shim; remove the folder, or use that driver with "
                    f"--driver-libraries {folder}"
                )


def _library_path(environment: Mapping[str, str]) -> Iterator[Path]:
    given = environment.get("LD_LIBRARY_PATH")
    if given:
        for entry in given.replace(";", ":").split(":"):
            yield Path(entry or ".")  # to the loader, an empty entry is the working folder


def _is_run_folder(folder: Path) -> bool:
    return (folder / names.LIBCUDA).is_file() and (folder.parent / "region").is_symlink()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _binaries(program: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield *program*, or the interpreters that its first line leads to."""
    for _ in range(5):  # the kernel allows four scripts in a row
        first = b""
        with contextlib.suppress(OSError), program.open("rb") as file:
            first = file.readline(_LONGEST_LINE)
        if not first.startswith(b"#!"):
            yield program
            return
        words = os.fsdecode(first[2:]).split()
        if not words:
            return
        program = Path(words[0])
        if program.name == "env":
            asked = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            found = shutil.which(asked[0], path=environment.get("PATH")) if asked else None
            if found is None:
                return
            program = Path(found)


def _search_folders(binary: Path) -> Iterator[tuple[str, Path]]:
    """Yield the folders that *binary* was linked to search, with the tag that says so."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile

    try:
        with binary.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                if isinstance(section, DynamicSection):
                    tags = {tag.entry.d_tag: tag for tag in section.iter_tags()}
                    yield from _expand(binary, tags)
    except (OSError, ELFError):
        return  # exec reports the error


def _expand(binary: Path, tags: Mapping[str, object]) -> Iterator[tuple[str, Path]]:
    kind, attribute = ("DT_RUNPATH", "runpath") if "DT_RUNPATH" in tags else ("DT_RPATH", "rpath")
    if kind not in tags:
        return
    origin = str(binary.resolve().parent)
    for entry in str(getattr(tags[kind], attribute)).split(":"):
        folder = entry.replace("$ORIGIN", origin).replace("${ORIGIN}", origin)
        if folder:
            yield kind, Path(folder)
