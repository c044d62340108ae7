"""Shared memory of processes: opened, closed, its exporter killed; charged once throughout."""

from kit import binaries, shimmed

QUOTA = ("--vmemory", "4GiB")
BYTES = 1 << 30  # more than a context takes
SLACK = 64 << 20  # what opening may take besides: tables of the driver
SECONDS = 60
KINDS = {
    "handle": "memory by cuIpcGetMemHandle",
    "descriptor": "memory by cuMemExportToShareableHandle",
    "pool": "a pool by cuMemPoolExportToShareableHandle",
}


def run(report):
    try:
        program = binaries.path("shared")
    except binaries.NotHereError as exc:
        report.missing("shared", exc)
        return
    for kind, name in KINDS.items():
        compare(report, name, [program, kind, "routed_v2", str(BYTES)])


def compare(report, name, command):
    bare, limited = (shimmed.answer(quota, command, SECONDS) for quota in (None, QUOTA))
    if isinstance(bare, str):
        report.missing(name, f"it does not work without a quota either: {bare}")
        return
    report.fact(f"{name}, without a quota", bare)
    if bare["open"] != 0:
        report.missing(name, f"the driver does not open it without a quota either: {bare['open']}")
        return
    if isinstance(limited, str):
        report.guarantee(f"{name}: works under a quota", False, limited)
        return
    for title, kept, detail in evaluate(bare, limited):
        report.guarantee(f"{name}: {title}", kept, detail)
    report.figure(f"{name}: from the last close until it is free", limited["free_ns"] / 1e6, "ms")


def evaluate(bare, limited):
    """Return (title, held, detail) for each guarantee about *limited*, given the *bare* run."""
    if limited["open"] != 0:
        return [("it can be opened", False, f"result {limited['open']}")]
    exported = limited["before"] - limited["exported"]
    opened = limited["exported"] - limited["opened"]
    return [
        ("the exporter is charged", BYTES <= exported <= BYTES + SLACK, f"{exported} of {BYTES}"),
        ("opening it is not charged again", abs(opened) <= SLACK, f"{opened} more"),
        ("closing it gives nothing back", limited["closed"] <= limited["exported"] + SLACK,
         f"free {limited['exported']} before, {limited['closed']} after"),
        ("the importer reads what was written", limited["same"] == bare["same"],
         f"{limited['same']} with a quota, {bare['same']} without"),
        ("it can be read like that when the exporter was killed",
         limited["same_after"] == bare["same_after"],
         f"{limited['same_after']} with a quota, {bare['same_after']} without"),
        ("it stays charged while the importer has it open",
         limited["orphaned"] < limited["before"],
         f"free {limited['orphaned']}, {limited['before']} beside the exporter's context alone"),
        ("it is free when the importer has closed it",
         limited["left"] >= limited["expected"] - SLACK,
         f"free {limited['left']} of {limited['expected']}"),
    ]  # fmt: skip
