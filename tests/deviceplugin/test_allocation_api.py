"""The API that allocates a device, device plugin or DRA, and the move between them."""

import pytest

from pyvgpu import errors
from pyvgpu.deviceplugin import allocation_api
from pyvgpu.deviceplugin.allocation_api import Api, ApiState, Configured
from pyvgpu.deviceplugin.devices import allocation_moves

A, B = "GPU-a", "GPU-b"


@pytest.mark.parametrize(
    ("words", "default", "wanted"),
    [
        pytest.param([], Api.PLUGIN, Configured(), id="nothing said"),
        pytest.param([], Api.DRA, Configured(Api.DRA), id="as a DRA driver"),
        pytest.param(["dra"], Api.PLUGIN, Configured(Api.DRA), id="all"),
        pytest.param([f"{A}=dra"], Api.PLUGIN, Configured(Api.PLUGIN, {A: Api.DRA}), id="one"),
        pytest.param(
            [f"{A}=plugin", "dra"], Api.PLUGIN, Configured(Api.DRA, {A: Api.PLUGIN}), id="but one"
        ),
    ],
)
def test_allocation_api_options_are_parsed(words, default, wanted):
    assert allocation_api.parse(words, default) == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["window"],
            "--allocation-api 'window': 'window' is not an allocation API; must be plugin, dra",
        ),
        ([f"{A}="], "'' is not an allocation API"),
        (["a=dra"], "'a' is not the UUID of a device; such as dra, or GPU-"),
        ([f"{A}=dra", f"{A}=plugin"], "'GPU-a' is given twice"),
        (["MIG-a=time-slices"], "a MIG device has no time slices; must be plugin or dra"),
    ],
)
def test_invalid_allocation_api_is_refused_with_rule_and_example(words, said):
    with pytest.raises(errors.UsageError, match="--allocation-api") as caught:
        allocation_api.parse(words, Api.PLUGIN)
    assert said in str(caught.value)


def test_mig_devices_keep_shares_where_all_devices_have_time_slices():
    configured = Configured(Api.TIME_SLICES)
    assert (configured.api(A), configured.api("MIG-a")) == (Api.TIME_SLICES, Api.PLUGIN)


@pytest.mark.parametrize(
    ("known", "held", "state"),
    [
        pytest.param({}, (), ApiState(Api.DRA, Api.DRA), id="new"),
        pytest.param({}, (A,), ApiState(Api.PLUGIN, Api.DRA), id="held, without a record"),
        pytest.param({A: Api.PLUGIN}, (), ApiState(Api.PLUGIN, Api.DRA), id="was the plugin's"),
        pytest.param({A: Api.DRA}, (A,), ApiState(Api.DRA, Api.DRA), id="stays"),
    ],
)
def test_api_of_a_device_configured_for_claims(known, held, state):
    assert allocation_api.states([A], Configured(Api.DRA), known, held) == {A: state}


@pytest.mark.parametrize(
    ("now", "wanted", "published", "elsewhere"),
    [
        (Api.PLUGIN, Api.PLUGIN, False, ""),
        (Api.DRA, Api.DRA, True, "dra"),
        (Api.PLUGIN, Api.DRA, False, "dra"),
        (Api.DRA, Api.PLUGIN, False, "dra"),
        (Api.TIME_SLICES, Api.TIME_SLICES, False, "time-slices"),
        (Api.PLUGIN, Api.TIME_SLICES, False, "time-slices"),
        (Api.TIME_SLICES, Api.PLUGIN, False, "time-slices"),
        (Api.DRA, Api.TIME_SLICES, False, "dra"),  # claims on it are still prepared
        (Api.TIME_SLICES, Api.DRA, False, "time-slices"),
    ],
)
def test_moving_device_is_offered_by_neither_api(now, wanted, published, elsewhere):
    state = ApiState(now, wanted)
    assert (state.published, state.elsewhere) == (published, elsewhere)


def gates(folder, *words):
    return allocation_moves.DeviceApis(
        folder, allocation_api.parse(words, Api.PLUGIN), settle_seconds=0
    )


def test_device_moves_once_it_is_free_and_stays_there(tmp_path):
    before = gates(tmp_path)
    before.meet([A, B], ())
    assert before.elsewhere(A) == before.elsewhere(B) == ""
    after = gates(tmp_path, f"{A}=dra")
    after.meet([A, B], ())
    assert after.elsewhere(A) == "dra"
    asked = []

    def held(api):
        asked.append(api)
        return {A}

    assert not after.poll(held)
    assert asked == [Api.PLUGIN]
    assert not after.gives(A)
    assert not after.poll(lambda _: None)  # holders unknown
    assert after.poll(lambda _: {B})
    assert after.published(A)
    assert after.gives(A)
    again = gates(tmp_path, f"{A}=dra")
    again.meet([A, B], ())
    assert again.published(A)
    back = gates(tmp_path)
    back.meet([A, B], ())
    assert not back.published(A)
    assert back.gives(A)  # existing allocations are still prepared
    assert back.elsewhere(A) == "dra"
    assert back.poll(lambda _: set())
    assert back.elsewhere(A) == ""
    assert not back.gives(A)


def test_damaged_file_of_apis_is_refused(tmp_path):
    (tmp_path / allocation_moves.FILE).write_text('{"GPU-a": "win')
    with pytest.raises(errors.DataError, match="fix it, for example"):
        gates(tmp_path)
