"""NVIDIA's own driver libraries under the shim, as far as they work without a GPU."""

from pathlib import Path

import hook_table
import pytest
import rights
import routes

pytestmark = [pytest.mark.drivers, rights.needs_mounts]

FIRST_CALLS = Path(__file__).with_name("first_calls.py")
INVALID_VALUE, NOT_INITIALIZED, NO_DEVICE, INVALID_HANDLE = 1, 3, 100, 400
NOT_LOADED = 9
# Code pairs (shim, driver) of functions in which some drivers check arguments first.
EARLY = {(NOT_INITIALIZED, INVALID_VALUE), (NOT_INITIALIZED, INVALID_HANDLE)}
# The shim answers these where the driver first needs its device files; the last is private.
ANSWERED = {
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
    "nvmlGetExcludedDeviceCount",
    "nvmlGetExcludedDeviceInfoByIndex",
    "nvmlRetry_NvRmControl",
}


@pytest.fixture(scope="session")
def began(place):
    """The answers to the first calls: under the shim, and of the bare driver."""
    hooks = sorted(hook_table.symbols())
    return [place.ask(FIRST_CALLS, given=hooks, bare=bare) for bare in (False, True)]


@pytest.fixture(scope="session")
def found(place):
    """The output of lookups.py for every export and every base name."""
    return place.ask(routes.LOOKUPS, given=routes.question(place.driver))


def test_driver_starts_as_without_the_shim(place, began):
    shimmed, bare = (
        {k: v for k, v in each.items() if k not in ("before", "after")} for each in began
    )
    assert shimmed == bare
    assert bare["cuInit"] == NO_DEVICE
    assert bare["nvmlInit_v2"] == NOT_LOADED
    place.record["cuInit"], place.record["nvmlInit"] = bare["cuInit"], bare["nvmlInit_v2"]
    code, version = bare["cuDriverGetVersion"]
    assert code == 0
    place.record["CUDA"] = f"{version // 1000}.{version % 1000 // 10}"


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_return_the_drivers_own_error_codes(place, began, when):
    shimmed, bare = (each[when] for each in began)
    other = {n: (shimmed[n], code) for n, code in bare.items() if code not in (None, shimmed[n])}
    wrong = {n: codes for n, codes in other.items() if codes not in EARLY and n not in ANSWERED}
    assert wrong == {}
    place.record[f"_codes {when} cuInit"] = bare


def test_every_export_is_the_drivers_own_function_or_a_hook(place, found):
    exports = found["exports"]
    shim = str(place.room.tree / "lib64" / "libcuda.so.1")
    hooked = {name for name, each in exports.items() if each["path"] == shim}
    assert hooked == hook_table.symbols() & set(exports)
    assert [n for n, each in exports.items() if n not in hooked and not each["same"]] == []
    place.record["exports"] = len(exports)
    place.record["hooked"] = len(hooked)
    place.record["_hooks it lacks"] = sorted(hook_table.symbols() - set(exports))
    place.record["_exports"] = {n: "shim" if n in hooked else "driver" for n in exports}


def test_no_hook_shares_its_function_with_another_name(found):
    assert found["aliases"] == []


def test_get_proc_address_returns_the_drivers_answers_with_hooks_substituted(place, found):
    answers = found["answers"]
    assert answers["wrong"] == []
    place.record["answers of cuGetProcAddress"] = answers["asked"]
    assert answers["asked"] > 10_000 or "cuGetProcAddress" not in found["exports"]


def test_get_proc_address_returns_each_hook_from_its_version_on(found):
    if "cuGetProcAddress" not in found["exports"]:
        assert found["answers"]["asked"] == 0  # a driver of CUDA 11.0
        return
    hooked = {tuple(each) for each in found["answers"]["hooked"]}
    expected = {(h.base, h.since) for h in hook_table.cuda() if h.symbol in found["exports"]}
    assert expected - hooked == set()
