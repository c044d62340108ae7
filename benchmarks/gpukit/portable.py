"""The kit's C programs as binaries for any glibc from 2.17 on, by the compiler of a PyPI wheel."""

import importlib.metadata
import pathlib
import re
import sys

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from kit import binaries

OLDEST_GLIBC = (2, 17)


def compiler_for(machine):
    """Return the command of a C compiler for *machine* and every glibc from the oldest on."""
    target = f"{machine}-linux-gnu.{'.'.join(map(str, OLDEST_GLIBC))}"
    return (sys.executable, "-m", "ziglang", "cc", "-target", target, "-s")


def newest_glibc(path):
    """Return the newest version of glibc that a program's symbols need; (0, 0) if none does."""
    newest = (0, 0)
    with pathlib.Path(path).open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if not isinstance(section, GNUVerNeedSection):
                continue
            for _, needed in section.iter_versions():
                for version in needed:
                    found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version.name)
                    if found:
                        newest = max(newest, (int(found[1]), int(found[2])))
    return newest


def static_runtime():
    """Return the path of the CUDA runtime that programs are linked with statically."""
    files = importlib.metadata.files("nvidia-cuda-runtime") or []
    return next(str(file.locate()) for file in files if file.name == "libcudart_static.a")


def compile_programs(folder, machine):
    """Make the C programs for *machine* in *folder*; SystemExit if one needs a newer glibc."""
    folder.mkdir(parents=True)
    for name in binaries.PROGRAMS:
        binaries.build(name, compiler_for(machine), folder)
    (folder / "static").mkdir()
    static = ("-DKIT_LINKED", static_runtime(), "-lpthread", "-lrt")
    made = binaries.build("runtime", compiler_for(machine), folder / "static", extra=static)
    pathlib.Path(made).replace(folder / "runtime-static")
    (folder / "static").rmdir()
    for path in folder.iterdir():
        newest = newest_glibc(path)
        if newest > OLDEST_GLIBC:
            raise SystemExit(f"{path}: needs glibc {newest}: must be {OLDEST_GLIBC} at most")
