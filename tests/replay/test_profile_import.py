"""Import of profilers' files, and error messages for unusable ones."""

import gzip
import json
import sqlite3

import profiles
import pytest
from profiles import MS, US, Profile

from pyvgpu import errors
from pyvgpu.replay import profile_import, recording

EXACT = {"start_ns": 1_700_000_000_000_000_123}


def read(path, *, process=None, device=None):
    found = profile_import.read(path)
    return recording.make_trace(path.name, found, recording.choose(found, path, process, device))


def kineto(path, **options):
    return profiles.write_kineto(path, profiles.kineto(Profile(**options)))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_profile_of_pytorch_is_read_with_its_steps(tmp_path, name):
    trace = read(kineto(tmp_path / name))
    assert (trace.steps, trace.activities, trace.gpu) == (3, 63, "NVIDIA H100 80GB HBM3")
    first, second = trace.records[:2]
    assert (first.kind, first.start, first.device_duration) == ("h2d", 0, 10 * US)
    assert (second.kind, second.start, second.duration) == ("launch", 20 * US, 5 * US)
    assert (second.grid, second.block, second.shared) == ((64, 1, 1), (256, 1, 1), 4096)
    assert trace.busy_ns() == 3 * (10 * US + 20 * 500 * US)


def test_absolute_times_keep_their_nanoseconds(tmp_path):
    trace = read(kineto(tmp_path / "trace.json", gap_ns=20_001, start_ns=EXACT["start_ns"]))
    assert trace.records[1].start == 20_001


def test_nsight_systems_export_is_read_like_a_pytorch_profile(tmp_path):
    ours = read(profiles.write_nsys(tmp_path / "report.sqlite", Profile()))
    theirs = read(kineto(tmp_path / "trace.json"))
    assert ours.records == theirs.records
    assert (ours.kernels, ours.gpu, ours.steps) == (theirs.kernels, "NVIDIA A100", 0)


def test_only_whole_steps_are_played(tmp_path):
    document = profiles.kineto(Profile(steps=3))
    marks = [e for e in document["traceEvents"] if e["name"].startswith("ProfilerStep")]
    document["traceEvents"].remove(marks[0])
    trace = read(profiles.write_kineto(tmp_path / "trace.json", document))
    assert (trace.steps, trace.activities) == (2, 42)


def test_without_steps_the_whole_recording_is_played(tmp_path):
    path = tmp_path / "trace.json"
    trace = read(profiles.write_kineto(path, profiles.kineto(Profile(), marks=False)))
    assert (trace.steps, trace.activities) == (0, 63)


def two(path):
    small = Profile(process=7, device=1, steps=1)
    return profiles.write_nsys(path, Profile(), small)


def test_process_with_most_work_is_chosen(tmp_path):
    path = two(tmp_path / "report.sqlite")
    choice = recording.choose(profile_import.read(path), path, None, None)
    assert (choice.process, choice.device) == (profiles.PROCESS, 0)
    assert (choice.processes, choice.devices) == ((profiles.PROCESS, 7), (0,))


def test_another_process_can_be_selected(tmp_path):
    assert read(two(tmp_path / "report.sqlite"), process=7).activities == 21


def test_missing_process_is_named(tmp_path):
    with pytest.raises(errors.UsageError, match=r"--process 8: .* has work of 7, 4242, such as"):
        read(two(tmp_path / "report.sqlite"), process=8)


def test_driver_calls_within_runtime_calls_are_not_counted():
    calls = [
        recording.HostCall(1, 1, 0, 9, "launch", "outer"),
        recording.HostCall(1, 1, 2, 5, "launch", "inner"),
    ]
    work = [recording.DeviceActivity("inner", 20, 5, "kernel", 0, 7, "one")]
    found = recording.Recording(calls, work, (), {})
    trace = recording.make_trace("nested", found, recording.TraceChoice(1, 0, (1,), (0,)))
    assert [(r.kind, r.duration, r.device_start) for r in trace.records] == [("launch", 9, 20)]


def test_several_activities_of_one_launch_become_a_graph():
    calls = [recording.HostCall(1, 1, 0, 9, "graph", 5)]
    work = [recording.DeviceActivity(5, 20 + at, 5, "kernel", 0, 7, "one") for at in (0, 10)]
    found = recording.Recording(calls, work, (), {})
    trace = recording.make_trace("graph", found, recording.TraceChoice(1, 0, (1,), (0,)))
    assert [(r.kind, r.ref) for r in trace.records] == [("graph", None), ("node", 0), ("node", 0)]


def test_late_activity_depends_on_the_one_that_just_ended_on_another_stream():
    calls = [recording.HostCall(1, 1, at, 2 * US, "launch", at) for at in (0, 9 * US)]
    work = [
        recording.DeviceActivity(0, 5 * US, MS, "kernel", 0, 7, "one"),
        recording.DeviceActivity(9 * US, MS + 7 * US, MS, "kernel", 0, 20, "one"),
    ]
    found = recording.Recording(calls, work, (), {})
    trace = recording.make_trace("late", found, recording.TraceChoice(1, 0, (1,), (0,)))
    assert [record.after for record in trace.records] == [None, 0]


NO_CALL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"correlation": 1}}

BAD = [
    pytest.param("x.nsys-rep", b"any", "must be exported first, by `nsys export", id="report"),
    pytest.param("x.json", b"hello", "is not a profile; must be JSON", id="text"),
    pytest.param("x.json", b'{"traceEvents": [', "is not complete JSON", id="cut JSON"),
    pytest.param("x.json", b"{}", "has no list of traceEvents", id="another JSON"),
    pytest.param(
        "x.json.gz", gzip.compress(b"{}" * 99)[:20], "is not a complete gzip file", id="cut gzip"
    ),
    pytest.param("x.json", b'{"traceEvents": []}', "has no GPU activity", id="no GPU"),
    pytest.param(
        "x.json",
        json.dumps([NO_CALL]).encode(),
        "has no calls that launched its GPU",
        id="no calls",
    ),
    pytest.param(
        "x.json",
        json.dumps([{**NO_CALL, "ts": "soon"}]).encode(),
        r"event 0 \(kernel\): ts is 'soon', .* it must have ts, dur and args, such as",
        id="no time",
    ),
    pytest.param("x.json", b"[" * 100_000, "is not complete JSON", id="deeply nested JSON"),
    pytest.param(
        "x.sqlite", b"SQLite format 3\0" + b"cut" * 99, "is not a complete export", id="cut"
    ),
]


@pytest.mark.parametrize(("name", "data", "message"), BAD)
def test_unusable_file_is_named_with_the_rule(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(errors.DataError, match=message) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "such as" in str(raised.value) or "nsys export" in str(raised.value)


ODD = [
    pytest.param("kernel", {"args": None}, r"\(kernel\): .* args None; it must have", id="args"),
    pytest.param(
        "cuda_runtime", {"args": "x"}, r"\(cuda_runtime\): .* args 'x'", id="call's args"
    ),
    pytest.param("cuda_sync", {"args": 5}, r"\(cuda_sync\): .* args 5", id="wait's args"),
    pytest.param(
        "kernel", {"args": {"correlation": [1]}}, "args {'correlation'", id="correlation"
    ),
    pytest.param("kernel", {"ts": float("inf")}, "ts is inf", id="infinite"),
    pytest.param("kernel", {"dur": -5}, "a kernel at .* ns ends before it starts", id="negative"),
    pytest.param(
        "kernel", {"dur": 10**12}, "records more than 3,600 s; must be shorter", id="long"
    ),
    pytest.param(
        "cuda_runtime", {"ts": -(10**999)}, "records more than 3,600 s", id="long before"
    ),
]


@pytest.mark.parametrize(("category", "change", "message"), ODD)
def test_unusable_event_is_named_with_the_rule(tmp_path, category, change, message):
    document = profiles.kineto(Profile(start_ns=0))
    wait = {"ph": "X", "cat": "cuda_sync", "name": "wait", "args": {"correlation": 1}}
    document["traceEvents"].append(wait)
    next(e for e in document["traceEvents"] if e.get("cat") == category).update(change)
    path = profiles.write_kineto(tmp_path / "trace.json", document)
    with pytest.raises(errors.DataError, match=message):
        read(path)


def test_unusable_list_of_devices_is_ignored(tmp_path):
    document = {**profiles.kineto(Profile()), "deviceProperties": 5}
    assert read(profiles.write_kineto(tmp_path / "trace.json", document)).gpu == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL set staticSharedMemory = 'much'", "not a complete export"),
        ("StringIds set value = cast(x'ff' as text)", "not a complete export"),
        ("CUPTI_ACTIVITY_KIND_KERNEL set end = start - 1", "ends before it starts"),
    ],
)
def test_unusable_values_of_an_export_are_named(tmp_path, change, message):
    path = profiles.write_nsys(tmp_path / "report.sqlite", Profile())
    with sqlite3.connect(path) as db:
        db.execute(f"update {change}")
    db.close()
    with pytest.raises(errors.DataError, match=message):
        read(path)


def test_truncated_export_is_named(tmp_path):
    path = profiles.write_nsys(tmp_path / "report.sqlite", Profile())
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(errors.DataError, match="is not a complete export of Nsight Systems"):
        read(path)


def test_database_of_another_kind_is_named(tmp_path):
    path = profiles.write_nsys(tmp_path / "report.sqlite", Profile())
    with sqlite3.connect(path) as db:
        db.execute("drop table StringIds")
    db.close()
    with pytest.raises(errors.DataError, match="has no table StringIds"):
        read(path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", "launch"),
        ("cudaLaunchKernelExC", "launch"),
        ("cuLaunchKernelEx", "launch"),
        ("hipExtModuleLaunchKernel", "launch"),
        ("cudaGraphLaunch", "graph"),
        ("cudaMemcpyAsync", "memcpy"),
        ("cudaMemsetAsync", "memset"),
        ("cudaStreamSynchronize", "stream_sync"),
        ("cudaDeviceSynchronize", "device_sync"),
        ("cudaEventSynchronize", "event_sync"),
        ("cudaEventRecordWithFlags", "event_record"),
        ("cudaStreamWaitEvent", "event_wait"),
        ("cudaEventQuery", "event_query"),
        ("cudaMalloc", "malloc"),
        ("cudaMallocHost", "malloc_host"),
        ("cudaHostAlloc", "malloc_host"),
        ("hipHostMalloc", "malloc_host"),
        ("cudaFree", "free"),
        ("cudaFreeHost", None),
        ("cudaGraphAddMemcpyNode", None),
        ("cudaGraphInstantiate", None),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessor", None),
        ("cudaGetDevice", None),
    ],
)
def test_calls_are_classified_by_name(name, kind):
    assert recording.kind_of(name) == kind
