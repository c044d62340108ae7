"""Overhead of the shim on launches from a C program: threads, streams, graphs."""

from kit import binaries, cuda, shimmed
from kit import report as reports

QUOTA = ("--vmemory", "4GiB")
WAYS = {
    "without the shim": None,
    "with memory limited": QUOTA,
    "with half of the time": (*QUOTA, "--vcore", "50"),
    "with 99 percent of the time": (*QUOTA, "--vcore", "99"),
}
CASES = (
    ("kernel", 1, "own"), ("graph", 1, "own"), ("kernel", 4, "own"), ("kernel", 4, "shared"),
)  # fmt: skip
COUNT = 20_000  # launches of each thread
SIMULATED_COUNT = 2_000
ROUNDS, SIMULATED_ROUNDS = 3, 1
SECONDS = 60


def run(report):
    try:
        program = binaries.path("launches")
    except binaries.NotHereError as exc:
        report.missing("launches", exc)
        return
    for case in CASES:
        compare(report, program, case)


def command(program, kind, threads, streams, count):
    image = str(cuda.HERE / "kernels.ptx")
    return [program, kind, "routed_v2", str(threads), streams, str(count), image]


def compare(report, program, case):
    kind, threads, streams = case
    stream = "one stream" if streams == "shared" else "a stream each"
    name = f"{kind}s from {threads} threads into {stream}" if threads > 1 else f"{kind}s"
    count = SIMULATED_COUNT if cuda.simulated() else COUNT // threads
    found = {way: [] for way in WAYS}
    for _ in range(
        SIMULATED_ROUNDS if cuda.simulated() else ROUNDS
    ):  # in turns, since the host's pace changes
        for way, options in WAYS.items():
            if reports.seconds_left() < 10:
                report.missing(f"{name}, {way}", "no time was left")
                continue
            seen = shimmed.answer(options, command(program, *case, count), SECONDS)
            if isinstance(seen, str):
                report.guarantee(f"{name}, {way}: work", False, seen)
                return
            found[way].append(seen)
    for way, rounds in found.items():
        for title, field in (("median", "median"), ("99th percentile", "percentile"),
                             ("wall time for each", "each")):  # fmt: skip
            report.median(f"{name}, {way}: {title}", [one[field] for one in rounds], "ns")
    bare = [one["median"] for one in found["without the shim"]]
    for way, rounds in found.items():
        if rounds and bare and way != "without the shim":
            ratios = [
                one["median"] / max(1, base) for one, base in zip(rounds, bare, strict=False)
            ]
            report.median(f"{name}, {way}: median to that without the shim", ratios, "ratio")
