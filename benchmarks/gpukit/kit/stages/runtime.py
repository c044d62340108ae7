"""Clients of the CUDA runtime: libraries found here, and programs linked by nvcc, both ways."""

import pathlib
import tempfile

from kit import binaries, cuda, finding, shimmed

QUOTA_BYTES = 4 << 30
QUOTA = ("--vmemory", f"{QUOTA_BYTES >> 30}GiB")
OUT_OF_MEMORY = 2
SECONDS = 60
MOST_LIBRARIES = 4


def run(report):
    with tempfile.TemporaryDirectory() as folder:
        for title, command in [*found(report), *compiled(report, folder)]:
            if cuda.simulated():
                report.missing(title, "the simulated driver does not serve the CUDA runtime")
            else:
                compare(report, title, command)


def found(report):
    """Return (title, command) for the runtime of the kit and for each that is found here."""
    commands = []
    try:
        commands.append(("static runtime of the kit", [binaries.path("runtime-static")]))
    except binaries.NotHereError as exc:
        report.missing("static runtime of the kit", exc)
    libraries = finding.libraries("libcudart.so.*")
    if not libraries:
        report.missing("libcudart.so", "in no Python package and no usual folder")
    try:
        program = binaries.path("runtime")
        for path in libraries[:MOST_LIBRARIES]:
            commands.append((f"shared runtime {path}", [program, path]))
    except binaries.NotHereError as exc:
        report.missing("runtime", exc)
    return [(title, [command[0], str(QUOTA_BYTES), *command[1:]]) for title, command in commands]


def compiled(report, folder):
    """Return (title, command) for what nvcc makes, with the runtime in it and beside it."""
    nvcc = finding.program("nvcc")
    if nvcc is None:
        report.missing("nvcc", "no such program in PATH or the usual folders")
        return []
    commands = []
    libraries = pathlib.Path(nvcc).resolve().parent.parent / "lib64"
    for kind in ("static", "shared"):
        title, target = f"{kind} runtime by nvcc", str(pathlib.Path(folder) / f"runtime-{kind}")
        source = str(binaries.SOURCES / "runtime.c")
        try:
            binaries.compile_with(
                [nvcc, "-O2", "-DKIT_LINKED", "-cudart", kind, "-o", target, source,
                 "-Xlinker", f"-rpath={libraries}"]
            )  # fmt: skip
        except binaries.NotHereError as exc:
            report.missing(title, exc)
        else:
            commands.append((title, [target, str(QUOTA_BYTES)]))
    return commands


def compare(report, title, command):
    bare, limited = (shimmed.answer(quota, command, SECONDS) for quota in (None, QUOTA))
    if isinstance(bare, str):
        report.missing(title, f"it does not run without a quota either: {bare}")
        return
    if isinstance(limited, str):
        report.guarantee(f"{title}: runs under a quota", False, limited)
        return
    report.fact(f"{title}: version", limited["version"])
    for guarantee, kept, detail in evaluate(limited):
        report.guarantee(f"{title}: {guarantee}", kept, detail)


def evaluate(limited):
    return [
        ("the quota is shown", limited["total"] == QUOTA_BYTES, f"total {limited['total']}"),
        ("copies come back", limited["same"] == 1, "1 MiB there and back"),
        ("more is refused", limited["past"] == OUT_OF_MEMORY, f"result {limited['past']}"),
        ("more is refused in a stream", limited["past_async"] == OUT_OF_MEMORY,
         f"result {limited['past_async']}"),
        ("it can be reset", limited["reset"] == 0, f"result {limited['reset']}"),
    ]  # fmt: skip
