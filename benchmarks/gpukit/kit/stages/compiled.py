"""The C programs built by this machine's compiler and linked with this machine's driver."""

import pathlib
import shutil
import tempfile

from kit import binaries, cuda, shimmed

QUOTA_BYTES = 2 << 30
OUT_OF_MEMORY = 2
SECONDS = 60
COMPILERS = ("gcc", "cc", "clang")


def run(report):
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        report.missing("gcc", "no C compiler in PATH")
        return
    report.fact("compiler", compiler)
    with tempfile.TemporaryDirectory() as folder:
        for name in binaries.PROGRAMS:
            try:
                binaries.build(name, [compiler], folder, driver=driver_of_this_process())
                report.fact(f"{name}: compiled", "yes")
            except binaries.NotHereError as exc:
                report.missing(f"{name}: compiled", exc)
        program = pathlib.Path(folder) / "forked"
        if program.exists():
            works(report, str(program))


def driver_of_this_process():
    cuda.driver()
    with open("/proc/self/maps", encoding="utf-8") as file:
        return next(line.split()[-1] for line in file if "libcuda.so" in line)


def works(report, program):
    quota = ("--vmemory", f"{QUOTA_BYTES >> 30}GiB")
    command = [program, "workers", "linked", str(QUOTA_BYTES // 2)]
    seen = shimmed.answer(quota, command, SECONDS)
    report.guarantee("a program linked here works under a quota", not isinstance(seen, str), seen)
    seen = shimmed.answer(quota, [program, "workers", "linked", str(2 * QUOTA_BYTES)], SECONDS)
    report.guarantee(
        "a program linked here is refused twice the quota",
        isinstance(seen, str) and f": {OUT_OF_MEMORY} (exit code" in seen, seen,
    )  # fmt: skip
