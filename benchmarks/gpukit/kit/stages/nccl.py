"""NCCL on one device: one rank, two ranks, and two ranks with NCCL configured to allow that."""

import os

from kit import cuda, finding, shimmed

QUOTA = ("--vmemory", "8GiB", "--vcore", "90")
SECONDS = 45
ALLOW = "NCCL_MULTI_RANK_GPU_ENABLE"  # since NCCL 2.30
SETTINGS = {
    "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN",
    "NCCL_DEBUG_FILE": "/dev/stderr",
}  # fmt: skip
CASES = (
    ("one rank", 1, {}), ("two ranks", 2, {}), ("two ranks, allowed", 2, {ALLOW: "1"}),
)  # fmt: skip

LAUNCHER = """
import subprocess, sys, json
library, ranks = sys.argv[1], int(sys.argv[2])
def start(rank):
    return subprocess.Popen([sys.executable, "-m", "kit.rank", library, str(ranks), str(rank)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
started = [start(rank) for rank in range(ranks)]
made = started[0].stdout.readline()
for process in started[1:]:
    process.stdin.write(made)
    process.stdin.flush()
print(json.dumps([json.loads(p.stdout.read().splitlines()[-1]) for p in started]))
"""


def run(report):
    found = finding.libraries("libnccl.so*")
    if not found:
        report.missing("NCCL", "no libnccl.so in a Python package or a usual folder")
        return
    report.fact("NCCL", found[0])
    if cuda.simulated():
        report.missing("NCCL", "the simulated driver does not serve the CUDA runtime")
        return
    if not cuda.has_room(report, 8 << 30):
        return
    for title, ranks, settings in CASES:
        compare(report, title, found[0], ranks, {**SETTINGS, **settings})


def ranks_of(quota, library, ranks, settings):
    """Return what each of *ranks* ranks under one quota said; a text if they did not end well."""
    os.environ.update(settings)
    try:
        return shimmed.answer(quota, shimmed.python(LAUNCHER, library, ranks), SECONDS)
    finally:
        for name in settings:
            del os.environ[name]


def compare(report, title, library, ranks, settings):
    bare, limited = (ranks_of(quota, library, ranks, settings) for quota in (None, QUOTA))
    if isinstance(bare, str):
        report.missing(title, f"it does not run without a quota either: {bare}")
        return
    words = [one["words"] for one in bare if one["words"]]
    if words:
        report.fact(f"{title}: NCCL refuses without a quota", words)
    for guarantee, kept, detail in evaluate(bare, limited, ranks):
        report.guarantee(f"{title}: {guarantee}", kept, detail)


def evaluate(bare, limited, ranks):
    """Return (title, held, detail) of the ranks with a quota, given those without."""
    if isinstance(limited, str):
        return [("ends as without a quota", False, limited)]
    if any(one["words"] for one in bare):
        return [
            ("is refused as without a quota", any(one["words"] for one in limited),
             f"{limited}"),
        ]  # fmt: skip
    right = all(one["sum"] == [ranks, ranks] for one in limited)
    return [("the sum is right", right, f"{limited}")]
