"""The kit's C programs: in the kit as binaries, and as source for a compiler that is found.

``programs/*.c`` are the sources, ``programs/bin/`` the binaries that ``make gpu-kit`` puts there,
for any glibc from 2.17 on.
"""

import dataclasses
import os
import pathlib
import subprocess
import tempfile

SOURCES = pathlib.Path(__file__).resolve().parent.parent / "programs"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror")
COMPILE_SECONDS = 120


class NotHereError(Exception):
    """A program cannot be run or made here; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    sources: tuple[str, ...]
    libraries: tuple[str, ...]
    driver: bool = True  # it is linked with libcuda.so.1


PROGRAMS = {
    "families": Program(("families.c", "cu.c"), ("-ldl",)),
    "forked": Program(("forked.c", "cu.c"), ("-ldl",)),
    "launches": Program(("launches.c", "cu.c"), ("-ldl", "-lpthread")),
    "runtime": Program(("runtime.c",), ("-ldl",), driver=False),
    "shared": Program(("shared.c", "cu.c"), ("-ldl",)),
    "tenant": Program(("tenant.c", "cu.c"), ("-ldl",)),
}


def path(name):
    """Return the kit's binary *name*; NotHereError if it cannot be run."""
    found = SOURCES / "bin" / name
    if not found.exists():
        raise NotHereError(f"{found}: not in this kit; make gpu-kit puts it there")
    try:
        subprocess.run([found], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotHereError(f"{found}: cannot be run here: {exc}") from exc
    return str(found)


def build(name, compiler, folder, driver=None, extra=()):
    """Make program *name* in *folder* with *compiler*, a command; return its path.

    *driver* is the libcuda.so.1 to link with; left out, an empty library of that name. *extra* are
    further arguments of the compiler. NotHereError has what a compiler says that fails.
    """
    program, target = PROGRAMS[name], pathlib.Path(folder) / name
    with tempfile.TemporaryDirectory() as scratch:
        linked = ()
        if program.driver:
            linked = ("-Wl,--no-as-needed", str(driver or empty_driver(compiler, scratch)))
        sources = [str(SOURCES / source) for source in program.sources]
        command = [*compiler, *FLAGS, "-o", str(target), *sources, *linked, *program.libraries]
        compile_with([*command, *extra])
    return str(target)


def empty_driver(compiler, folder):
    """Make a library of the driver's name; return its path. The programs' references are weak."""
    source, library = pathlib.Path(folder) / "empty.c", pathlib.Path(folder) / "libcuda.so.1"
    source.write_text("int kit_empty_driver;\n", encoding="utf-8")
    options = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    compile_with([*compiler, *options, "-o", str(library), str(source)])
    return library


def compile_with(command):
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise NotHereError(f"{command[0]}: {exc}") from exc
    if done.returncode:
        raise NotHereError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-600:]}")
