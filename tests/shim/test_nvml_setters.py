"""NVML calls that change a device or reveal other tenants: the shim handles them alone."""

import json

import hook_table
import pytest

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4

# Names, and whether NVML is initialised and the handle is valid.
ASK = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
names, is_open, is_handle = json.loads(sys.argv[1]), sys.argv[2] == "open", sys.argv[3] == "handle"
device = P()
if is_open:
    check(nvml.nvmlInit_v2())
    check(nvml.nvmlDeviceGetHandleByIndex_v2(UINT(0), byref(device)))
first = device if is_handle else P(4096)
answer({name: getattr(nvml, name)(first, *[U64(0)] * 7) for name in names})
"""


def names_of(*areas):
    return [hook.symbol for hook in hook_table.nvml() if hook.area in areas]


@pytest.fixture(name="ask")
def fixture_ask(room):
    def ask(names, is_open="open", is_handle="handle"):
        return set(room.ask(ASK, json.dumps(names), is_open, is_handle).values())

    return ask


def test_nothing_can_be_set(ask):
    names = names_of("setter", "setter_other")
    assert len(names) > 70
    assert ask(names) == {NO_PERMISSION}


def test_calls_about_other_tenants_are_not_supported(ask):
    assert ask(names_of("hidden", "hidden_other")) == {NOT_SUPPORTED}


def test_calls_before_nvmlInit_are_uninitialized(ask):
    names = names_of("setter", "setter_other", "hidden", "hidden_other")
    assert ask(names, "closed", "no handle") == {UNINITIALIZED}


def test_invalid_handle_gets_the_drivers_result(ask):
    assert ask(names_of("setter", "hidden"), "open", "no handle") == {INVALID_ARGUMENT}
