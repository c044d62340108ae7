"""Acceptance stages: correct results pass, and each incorrect one is named."""

import concurrent.futures
import types

import pytest
from kit import cuda, finding
from kit.stages import doctor, nccl, programs, quota, runtime, shared, tools, training

GIB = 1 << 30
MIB = 1 << 20


class Kept:
    """A report that collects the names of passed and of failed claims."""

    def __init__(self):
        self.held, self.broken = [], []

    def guarantee(self, name, held, _detail):
        (self.held if held else self.broken).append(name.partition(": ")[2])

    def figure(self, *_arguments):
        pass


FILLED = {
    "device": 4 * GIB, "total": 4 * GIB, "free": 3 * GIB, "at": 0, "past": 2, "codes": [2, 2],
    "held": 3 * GIB, "same": 1, "again": [0, 0], "left": 3 * GIB,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "held", "broken"),
    [
        pytest.param({}, 4 * GIB, [], id="as it should be"),
        pytest.param({"total": 80 * GIB}, 0, ["the quota is shown as the device"], id="total"),
        pytest.param({"device": 80 * GIB}, 0, ["the quota is shown as the device"], id="device"),
        pytest.param({"at": 2}, 0, ["a request of all that is free is served"], id="at"),
        pytest.param({"past": 0}, 0, ["a request of more is refused as out of memory"], id="past"),
        pytest.param({"past": 1}, 0, ["a request of more is refused as out of memory"], id="odd"),
        pytest.param({"codes": []}, 0, ["more is refused as out of memory"], id="never refused"),
        pytest.param({"codes": [2, 1]}, 0, ["more is refused as out of memory"], id="other code"),
        pytest.param({"held": 4 * GIB}, 0, ["nothing beyond the quota"], id="too much"),
        pytest.param({"held": 2 * GIB}, 0, ["nearly all of it can be had"], id="too little"),
        pytest.param({}, 5 * GIB, ["the device holds no more than the quota"], id="by NVML"),
        pytest.param({"same": 0}, 0, ["what was written is there"], id="not the same"),
        pytest.param({"again": [0, 2]}, 0, ["what was freed can be had again"], id="lost"),
        pytest.param({"left": 2 * GIB}, 0, ["everything is free at the end"], id="leaked"),
    ],
)
def test_a_filled_quota(changed, held, broken):
    kept = Kept()
    quota.evaluate(kept, "plain memory", {**FILLED, **changed}, held)
    assert kept.broken == broken
    assert len(kept.held) + len(kept.broken) == 10


SHARED = {
    "before": 4 * GIB, "exported": 3 * GIB, "open": 0, "opened": 3 * GIB, "same": 1,
    "closed": 3 * GIB, "orphaned": 3 * GIB + 512 * MIB, "same_after": 1, "free_ns": 1000,
    "left": 4 * GIB + 512 * MIB, "expected": 4 * GIB + 512 * MIB,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        pytest.param({}, [], id="as it should be"),
        pytest.param({"open": 2}, ["it can be opened"], id="refused"),
        pytest.param(
            {"exported": 4 * GIB, "opened": 4 * GIB, "closed": 4 * GIB},
            ["the exporter is charged"], id="free",
        ),
        pytest.param({"opened": 2 * GIB}, ["opening it is not charged again"], id="charged twice"),
        pytest.param({"opened": 4 * GIB}, ["opening it is not charged again"], id="given back"),
        pytest.param({"closed": 4 * GIB}, ["closing it gives nothing back"], id="closed"),
        pytest.param({"same": 0}, ["the importer reads what was written"], id="other bytes"),
        pytest.param(
            {"same_after": 0}, ["it can be read like that when the exporter was killed"],
            id="gone with its exporter",
        ),
        pytest.param(
            {"orphaned": 4 * GIB + 512 * MIB}, ["it stays charged while the importer has it open"],
            id="free with its exporter",
        ),
        pytest.param(
            {"left": 3 * GIB + 512 * MIB}, ["it is free when the importer has closed it"],
            id="stays",
        ),
    ],
)  # fmt: skip
def test_shared_memory(changed, broken):
    found = shared.evaluate(SHARED, {**SHARED, **changed})
    assert [title for title, held, _ in found if not held] == broken


TABLE = """
| 30%   41C    P0    60W / 700W |   1032MiB /  {total}MiB |      0%      Default |
"""


@pytest.mark.parametrize(
    ("use", "without", "with_quota", "broken"),
    [
        pytest.param(0, (0, TABLE.format(total=81559)), (0, TABLE.format(total=4096)), [],
                     id="the quota is shown"),
        pytest.param(0, (0, TABLE.format(total=81559)), (0, TABLE.format(total=81559)),
                     ["shows the quota"], id="the device is shown"),
        pytest.param(0, (0, TABLE.format(total=81559)), (0, "nothing"), ["shows the quota"],
                     id="nothing is shown"),
        pytest.param(0, (0, ""), (9, ""), ["ends as without a quota", "shows the quota"],
                     id="it fails with a quota"),
        pytest.param(0, (9, ""), (9, ""), [], id="it fails either way"),
        pytest.param(1, (0, ""), (0, ""), [], id="it shows no memory"),
        pytest.param(-1, (0, '{"total": 9}'), (0, '[main] {"each": 1, "total": 4294967296}\n'), [],
                     id="our client in a debugger"),
        pytest.param(-1, (0, '{"total": 9}'), (0, '{"each": 1, "total": 85899345920}\n'),
                     ["shows the quota"], id="our client sees the device"),
        pytest.param(5, (0, ""), (0, "12.5MiB / 4.000GiB"), [], id="another unit"),
    ],
)  # fmt: skip
def test_a_tool(use, without, with_quota, broken):
    found = tools.evaluate(tools.USES[use], without, with_quota)
    assert [title for title, held, _ in found if not held] == broken


def rank(total=None, words=""):
    return {"version": 23000, "words": words, "sum": total}


REFUSED = rank(words="ncclCommInitRank returned 5: Duplicate GPU detected")


@pytest.mark.parametrize(
    ("bare", "limited", "broken"),
    [
        pytest.param([rank([2, 2])] * 2, [rank([2, 2])] * 2, [], id="two ranks"),
        pytest.param([rank([2, 2])] * 2, [rank([2, 2]), rank([1, 1])], ["the sum is right"],
                     id="a wrong sum"),
        pytest.param([REFUSED] * 2, [REFUSED] * 2, [], id="refused either way"),
        pytest.param([REFUSED] * 2, [rank([2, 2])] * 2, ["is refused as without a quota"],
                     id="refused without a quota alone"),
        pytest.param([rank([2, 2])] * 2, [REFUSED] * 2, ["the sum is right"],
                     id="refused with a quota alone"),
        pytest.param([rank([2, 2])] * 2, "not done after 45 s", ["ends as without a quota"],
                     id="it hangs with a quota"),
    ],
)  # fmt: skip
def test_ranks_of_nccl(bare, limited, broken):
    found = nccl.evaluate(bare, limited, 2)
    assert [title for title, held, _ in found if not held] == broken


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({}, []),
        ({"total": 80 * GIB}, ["the quota is shown"]),
        ({"same": 0}, ["copies come back"]),
        ({"past": 0}, ["more is refused"]),
        ({"past_async": 0}, ["more is refused in a stream"]),
        ({"reset": 1}, ["it can be reset"]),
    ],
)
def test_a_client_of_the_runtime(changed, broken):
    seen = {"total": 4 * GIB, "same": 1, "past": 2, "past_async": 2, "reset": 0, **changed}
    assert [title for title, held, _ in runtime.evaluate(seen) if not held] == broken


def check(name, state):
    return {"check": name, "state": state, "found": state, "remedy": ""}


@pytest.mark.parametrize(
    ("checks", "broken"),
    [
        ([check("memory is held", "ok"), check("time is held", "ok")], []),
        ([check("memory is held", "broken"), check("time is held", "ok")], ["memory is held"]),
        ([check("memory is held", "ok")], ["time is held"]),
        ([], ["memory is held", "time is held"]),
    ],
)
def test_a_proof_of_doctor(checks, broken):
    assert [title for title, held, _ in doctor.evaluate(checks) if not held] == broken


def speed(steps, last=3.0, each=None):
    return {"steps": steps, "words": 1.0, "first": 8.0, "last": last, "each": each}


@pytest.mark.parametrize(
    ("half", "broken"),
    [
        (speed(5.0), []),
        (speed(5.4), []),
        (speed(5.6), ["vcore 50: training is not over its share"]),
        (speed(4.4), ["vcore 50: training has its share"]),
        (speed(5.0, last=9.0), ["vcore 50: the model learns"]),
    ],
)
def test_training(half, broken):
    found = training.evaluate({"without the shim": speed(10.0), "vcore 50": half})
    assert [title for title, held, _ in found if not held] == broken


@pytest.mark.parametrize(
    ("steps", "broken"),
    [
        (6.2, []),  # of 10, at which the device is busy for 80 percent of the time
        (7.0, ["vcore 50: training is not over its share"]),
        (5.5, ["vcore 50: training has its share"]),
    ],
)
def test_training_that_leaves_the_device_idle(steps, broken):
    alone = speed(10.0, each=0.08)
    found = training.evaluate({"without the shim": alone, "vcore 50": speed(steps)})
    assert [title for title, held, _ in found if not held] == broken


def test_programs_and_libraries_of_a_toolkit_are_found(tmp_path, monkeypatch):
    for name in ("bin/ncu-of-a-test", "lib64/libkit.so.12", "lib64/libkit.so.13"):
        path = tmp_path / "cuda-13.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    (tmp_path / "cuda-13.0/lib64/libkit.so.1").symlink_to("libkit.so.13")
    monkeypatch.setattr(finding, "TOOLKITS", (f"{tmp_path}/cuda*",))
    assert finding.program("ncu-of-a-test") == str(tmp_path / "cuda-13.0/bin/ncu-of-a-test")
    assert finding.program("no-such-program") is None
    assert finding.libraries("libkit.so.*") == [
        str(tmp_path / "cuda-13.0/lib64/libkit.so.13"),
        str(tmp_path / "cuda-13.0/lib64/libkit.so.12"),
    ]


def test_a_device_for_one_process_runs_programs_one_after_the_other(monkeypatch):
    sizes, pool = [], concurrent.futures.ThreadPoolExecutor
    monkeypatch.setattr(
        concurrent.futures, "ThreadPoolExecutor", lambda size: sizes.append(size) or pool(size)
    )
    monkeypatch.setattr(programs.shimmed, "answer", lambda quota, *_: quota)
    monkeypatch.setattr(cuda, "nvml", lambda: None)
    monkeypatch.setattr(cuda, "nvml_handle", lambda _: None)
    large = types.SimpleNamespace(total=programs.ROOM_GIB << 30)
    monkeypatch.setattr(cuda, "nvml_memory", lambda *_: large)
    for mode in ("exclusive process", cuda.SHARED):
        monkeypatch.setattr(cuda, "compute_mode", lambda mode=mode: mode)
        assert programs.both_ways([], 1) == [None, programs.QUOTA]
    assert sizes == [1, 2]
