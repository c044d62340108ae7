"""Parameters of a simulated machine, computed from the figures of a record."""

import kit_records
import pytest

from pyvgpu import errors
from pyvgpu.calibration import calibration_record, machine_values


@pytest.fixture
def values(tmp_path):
    """Return a function that gives the values of a record with these stages."""

    def read(**stages):
        found = calibration_record.load(kit_records.write(tmp_path / "record.json", **stages))
        return {key: value.value for key, value in machine_values.values(found).items()}

    return read


def away(two, three=None):
    figures = {"2 processes: away from the device": two}
    if three is not None:
        figures["3 processes: away from the device"] = three
    return kit_records.stage(figures=figures)


def test_everything_is_found(values):
    assert values() == {
        "slice_ns": 2_500_000, "switch_ns": 100_000, "event_ns": 3000, "event_late_ns": 1500,
        "queue_depth": 1022, "memory_bytes": 150_111_027_200, "context_bytes": 520 << 20,
        "sm_count": 132,
    }  # fmt: skip


@pytest.mark.parametrize("turn", [500, 1000, 4000])
@pytest.mark.parametrize("switch", [0, 20, 300])
def test_turn_and_switch_are_distinguished(values, turn, switch):
    found = values(slices=away(turn + 2 * switch, 2 * turn + 3 * switch))
    assert (found["slice_ns"], found["switch_ns"]) == (1000 * turn, 1000 * switch)


def test_clients_of_mps_have_no_turns(values):
    figures = {"2 processes: away from the device": 900.0}
    facts = {"processes are clients of MPS": True}
    found = values(slices=kit_records.stage(facts=facts, figures=figures))
    assert not {"slice_ns", "switch_ns"} & found.keys()


def test_what_short_kernels_leave_of_the_time_is_between_them(values):
    alone = kit_records.stage(figures={"without a quota, 5 us: share": 71.43})
    assert values(alone=alone)["launch_ns"] == 2000


def test_without_short_kernels_events_give_the_launch_time(values):
    events = {"two events in a queue, by throughput": 3.0, machine_values.AROUND_A_KERNEL: 3.5}
    assert values(events=kit_records.stage(figures=events))["launch_ns"] == 2000


@pytest.mark.parametrize("share", [0, 104.0])
def test_an_impossible_share_is_ignored(values, share):
    alone = kit_records.stage(figures={"without a quota, 5 us: share": share})
    assert "launch_ns" not in values(alone=alone)


def test_a_switch_below_the_noise_is_ignored(values):
    found = values(slices=away(1000.0, 2030.0))
    assert (found["slice_ns"], found["switch_ns"]) == (1_000_000, 0)


def test_two_processes_alone_give_no_switch(values):
    found = values(slices=away(1000.0))
    assert found["slice_ns"] == 1_000_000
    assert "switch_ns" not in found


def test_what_was_not_measured_is_left_out(values):
    nothing = kit_records.stage("timeout", "killed after 60 s")
    assert values(slices=nothing, events=nothing, queue=nothing).keys() == {
        "memory_bytes", "context_bytes", "sm_count",
    }  # fmt: skip


def test_a_queue_that_never_blocks_is_as_deep_as_can_be(values):
    queue = {"launches that a stream behind a gate takes at least": 20_000}
    assert values(queue=kit_records.stage(figures=queue))["queue_depth"] == 8192


@pytest.mark.parametrize(
    ("survives", "smallest", "found"),
    [
        pytest.param(512, 512, {"small_bytes": 512, "small_blocks": False}, id="units"),
        pytest.param(65536, 65536, {"small_bytes": 65536, "small_blocks": False}, id="wide"),
        pytest.param(2 << 20, 4096, {"small_blocks": True}, id="blocks"),
    ],
)
def test_units_of_small_allocations_differ_from_blocks(values, survives, smallest, found):
    name = "512 bytes that survive in a block of 2 MiB"
    seen = values(memory=kit_records.stage(figures={name: survives, "allocation of 1": smallest}))
    assert {key: seen.get(key) for key in ("small_bytes", "small_blocks") if key in seen} == found


@pytest.mark.parametrize("unit", [1 << 16, 1 << 20, 2 << 20, 4 << 20])
def test_the_unit_of_large_allocations_is_found(values, unit):
    figures = {
        f"allocation of {size}": -(-size // unit) * unit for size in (1 << 20, (1 << 20) + 1)
    }
    assert values(memory=kit_records.stage(figures=figures))["large_bytes"] == unit


def test_first_allocation_of_a_pool_is_its_chunk(values):
    pools = kit_records.stage(figures={"reserved after 1": 32 << 20})
    assert values(pools=pools)["pool_chunk_bytes"] == 32 << 20


def test_the_time_of_a_chunk_is_a_part_of_that_of_the_growth(values):
    figures = {"reserved after 1": 32 << 20, "time to grow by 256 MiB": 345.25}
    assert values(pools=kit_records.stage(figures=figures))["pool_chunk_ns"] == 43156
    del figures["reserved after 1"]
    assert "pool_chunk_ns" not in values(pools=kit_records.stage(figures=figures))


def test_more_contexts_are_parts_of_the_first(values):
    contexts = kit_records.stage(
        figures={
            "lazy loading: 1 primary, by NVML": 400 << 20,
            "lazy loading: 10 green, by NVML": 40 << 20,
            "many contexts: 1 primary, by NVML": 500 << 20,
            "many contexts: 2 second, by NVML": 250 << 20,
        }
    )
    found = values(contexts=contexts)
    assert (found["second_context_percent"], found["green_context_percent"]) == (50, 10)


@pytest.mark.parametrize(
    ("said", "keeps", "word"),
    [("stays while the child lives", True, "yes"), ("free after 20 ms", False, "no")],
)
def test_memory_kept_by_a_forked_child_is_a_flag(tmp_path, said, keeps, word):
    fork = kit_records.stage(facts={"memory of a killed process with a forked child": said})
    found = calibration_record.load(kit_records.write(tmp_path / "record.json", fork=fork))
    value = machine_values.values(found)["fork_keeps"]
    assert (value.value, str(value)) == (keeps, word)


def nvml_of(memory_ms, ages_ms):
    least, middle, most = ages_ms
    return kit_records.stage(
        figures={
            "allocation until memory in use shows it": memory_ms,
            "age of the newest sample of utilization": (middle, [least, most]),
        }
    )


@pytest.mark.parametrize(
    ("memory_ms", "ages_ms", "memory_ns", "load_ns"),
    [
        pytest.param(0.01, (0.04, 8.3, 16.8), 0, 0, id="at once"),
        pytest.param(300.4, (167.2, 250.0, 333.0), 300_000_000, 167_000_000, id="late"),
        pytest.param(4000.0, (1500.0, 1600.0, 1700.0), 10**9, 10**9, id="later than can be"),
    ],
)
def test_delay_of_nvml_is_found_to_a_millisecond(values, memory_ms, ages_ms, memory_ns, load_ns):
    found = values(nvml=nvml_of(memory_ms, ages_ms))
    assert (found["nvml_memory_late_ns"], found["nvml_load_late_ns"]) == (memory_ns, load_ns)


@pytest.mark.parametrize(
    ("device", "total", "key"),
    [
        ("NVIDIA H200", 150_111_027_200, "h200"),
        ("NVIDIA H100 80GB HBM3", 85_000_000_000, "h100"),
        ("Tesla T4", 15_800_000_000, "t4"),
        ("NVIDIA A100-SXM4-40GB", 42_400_000_000, "a100"),
        ("NVIDIA A100-SXM4-80GB", 85_100_000_000, "a100-80g"),
        ("NVIDIA L40S", 47_600_000_000, "l40s"),
    ],
)
def test_the_model_is_that_of_the_devices_name(tmp_path, device, total, key):
    facts = kit_records.stage(facts={"device": device}, figures={"memory total": total})
    found = calibration_record.load(kit_records.write(tmp_path / "record.json", facts=facts))
    assert machine_values.model(found).key == key


def test_a_device_of_no_model_needs_one_named(tmp_path):
    facts = kit_records.stage(facts={"device": "NVIDIA GeForce RTX 4090"})
    found = calibration_record.load(kit_records.write(tmp_path / "record.json", facts=facts))
    with pytest.raises(errors.UsageError, match="no model for its device, 'NVIDIA GeF"):
        machine_values.model(found)
    assert machine_values.model(found, "l40s").key == "l40s"
    with pytest.raises(errors.UsageError, match="--model 'rtx': must be one of t4, "):
        machine_values.model(found, "rtx")
