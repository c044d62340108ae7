"""Programs that fork and are killed, under the shim: results of calls, and leftover charges."""

from kit import binaries, shimmed

QUOTA = ("--vmemory", "4GiB")
BYTES = 5 << 29  # 2.5 GiB: within the quota once, with two contexts, and not twice
SECONDS = 60
WAYS = ("linked", "routed_v2")
WORKERS_BYTES = 1 << 30


def run(report):
    try:
        program = binaries.path("forked")
    except binaries.NotHereError as exc:
        report.missing("forked", exc)
        return
    for way in WAYS:
        workers(report, program, way)
    for kind, title in (("successor", "killed"), ("orphan", "killed, its forked child alive")):
        successor(report, program, kind, title)


def workers(report, program, way):
    """A process with a context forks workers; one is killed."""
    command = [program, "workers", way, str(WORKERS_BYTES)]
    name = f"workers of a process with a context, {way}"
    bare, limited = (shimmed.answer(quota, command, SECONDS) for quota in (None, QUOTA))
    if isinstance(bare, str):
        report.missing(name, f"it does not run without a quota either: {bare}")
        return
    if isinstance(limited, str):
        report.guarantee(f"{name}: run under a quota", False, limited)
        return
    report.fact(f"{name}: answer to a forked child", bare["child"])
    for field, title in (
        ("child", "the forked child is answered as by the bare driver"),
        ("killed", "the killed one ends by its signal"),
        ("ended", "the other one ends by itself"),
        ("after", "the parent goes on"),
    ):
        report.guarantee(
            f"{name}: {title}", limited[field] == bare[field],
            f"{limited[field]} with a quota, {bare[field]} without",
        )  # fmt: skip
    report.guarantee(
        f"{name}: nothing stays charged", limited["left"] >= 0.99 * limited["before"],
        f"free {limited['before']} before, {limited['left']} at the end",
    )  # fmt: skip


def successor(report, program, kind, title):
    """A process that holds most of the quota is killed; another waits for its memory."""
    seen = shimmed.answer(QUOTA, [program, kind, "linked", str(BYTES)], SECONDS)
    name = f"process that was {title}"
    if isinstance(seen, str):
        report.guarantee(f"{name}: another follows", False, seen)
        return
    if seen["taken_ns"] >= 0:
        report.figure(f"{name}: until another has its memory", seen["taken_ns"] / 1e6, "ms")
    else:
        report.fact(f"{name}: until another has its memory", "not while the child lives")
        if seen["after_child_ns"] >= 0:
            report.figure(f"{name}: then, without the child", seen["after_child_ns"] / 1e6, "ms")
    report.guarantee(
        f"{name}: another gets its memory",
        seen["taken_ns"] >= 0 or (kind == "orphan" and seen["after_child_ns"] >= 0),
        f"{seen}",
    )
