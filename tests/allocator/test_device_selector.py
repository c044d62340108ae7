"""Device selection by annotations of pods: their meaning, and errors with valid examples."""

import pytest

from pyvgpu import errors
from pyvgpu.allocator import datatypes, device_selector

GIB = 1 << 30
BINPACK, SPREAD = datatypes.Packing.BINPACK, datatypes.Packing.SPREAD


def ours(**notes):
    return {f"pyvgpu.io/{name.replace('_', '-')}": text for name, text in notes.items()}


@pytest.mark.parametrize(
    ("notes", "selector"),
    [
        ({}, {}),
        ({"device_uuids": "GPU-1"}, {"uuids": {"GPU-1"}}),
        ({"device_uuids": "MIG-GPU-1/2/0"}, {"uuids": {"MIG-GPU-1/2/0"}}),
        ({"not_device_uuids": "GPU-1, GPU-2"}, {"not_uuids": {"GPU-1", "GPU-2"}}),
        ({"device_models": "H100,A100 SXM"}, {"models": {"H100", "A100 SXM"}}),
        ({"not_device_models": "T4"}, {"not_models": {"T4"}}),
        ({"device_classes": "fast, large"}, {"classes": {"fast", "large"}}),
        ({"device_numa": "0"}, {"numa": 0}),
        ({"device_memory": "40Gi"}, {"least_memory": 40 * GIB}),
    ],
)
def test_selectors_of_devices(notes, selector):
    sets = {
        key: frozenset(value) if isinstance(value, set) else value
        for key, value in selector.items()
    }
    assert device_selector.read(ours(**notes)) == device_selector.DeviceSelector(
        datatypes.Selector(**sets)
    )


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (None, [None, None]),
        ("2", [2, 2]),
        ("main=2", [2, None]),
        ("main=2, side=1", [2, 1]),
    ],
)
def test_number_of_devices_of_a_container(text, counts):
    found = device_selector.read({} if text is None else ours(device_count=text))
    assert [found.count_of(name) for name in ("main", "side")] == counts


def test_placement_is_the_pods_choice_or_the_administrators():
    own = device_selector.read(ours(packing="spread", topology_policy="nvlink"))
    assert own == device_selector.DeviceSelector(
        packing=SPREAD, nearness=datatypes.Nearness.NVLINK
    )
    one = (datatypes.Container("a", datatypes.ContainerNeed(30, GIB)),)
    assert own.pod(one, BINPACK) == datatypes.Pod(one, SPREAD, datatypes.Nearness.NVLINK)
    assert device_selector.read({"other": "x"}).pod(one, SPREAD) == datatypes.Pod(one, SPREAD)


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ({"device_uuids": ""}, "device-uuids '': must be words separated by commas"),
        ({"device_uuids": "0"}, "device-uuids '0': must be UUIDs of devices .*such as GPU-6f1e"),
        ({"device_uuids": "GPU-1,1"}, "device-uuids '1': must be UUIDs"),
        ({"not_device_uuids": "gpu-1"}, "not-device-uuids 'gpu-1': must be UUIDs"),
        ({"device_models": "H100,"}, "device-models 'H100,': must be words"),
        ({"not_device_models": " "}, "not-device-models ' ': must be words .*, such as T4"),
        ({"device_classes": "a,,b"}, "device-classes 'a,,b': must be words .*, such as fast"),
        ({"device_numa": "-1"}, "device-numa '-1': must be the number .* from 0 to 1023"),
        ({"device_numa": "1024"}, "device-numa '1024': must be the number"),
        ({"device_memory": "much"}, "device-memory 'much': must be a size in bytes, such as"),
        ({"device_count": "0"}, "device-count '0': must be a number of devices from 1 to 64"),
        ({"device_count": "65"}, "device-count '65': must be .*, such as 2 or main=2,side=1"),
        ({"device_count": "a=2,a=2"}, "device-count 'a=2,a=2': must be a number"),
        ({"device_count": "=2"}, "device-count '=2': must be a number"),
        ({"device_count": "a=2,"}, "device-count 'a=2,': must be a number"),
        ({"packing": "topology"}, "packing 'topology': must be binpack or spread"),
        (
            {"topology_policy": "near"},
            "topology-policy 'near': must be preferred or nvlink or numa",
        ),
    ],
)
def test_invalid_annotations_are_refused(notes, said):
    with pytest.raises(errors.UsageError, match=f"^pyvgpu.io/{said}"):
        device_selector.read(ours(**notes))


def test_each_annotation_is_read():
    for name in device_selector.ANNOTATIONS:
        with pytest.raises(errors.UsageError, match=f"^{name} '': must be"):
            device_selector.read({name: ""})
