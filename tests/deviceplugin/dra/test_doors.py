"""Through which door a device is given out, and when it may change."""

import pytest

from pyvgpu import errors
from pyvgpu.deviceplugin.dra import doors, moving
from pyvgpu.deviceplugin.dra.doors import Door, Stand, Wanted

A, B = "GPU-a", "GPU-b"


@pytest.mark.parametrize(
    ("words", "default", "wanted"),
    [
        pytest.param([], Door.PLUGIN, Wanted(), id="nothing said"),
        pytest.param([], Door.DRA, Wanted(Door.DRA), id="as a DRA driver"),
        pytest.param(["dra"], Door.PLUGIN, Wanted(Door.DRA), id="all"),
        pytest.param([f"{A}=dra"], Door.PLUGIN, Wanted(Door.PLUGIN, {A: Door.DRA}), id="one"),
        pytest.param(
            [f"{A}=plugin", "dra"], Door.PLUGIN, Wanted(Door.DRA, {A: Door.PLUGIN}), id="but one"
        ),
    ],
)
def test_what_is_wanted(words, default, wanted):
    assert doors.parse(words, default) == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["window"], "--door 'window': 'window' is no door; must be plugin or dra"),
        ([f"{A}="], "'' is no door"),
        (["a=dra"], "'a' is no device's UUID; such as dra, or GPU-"),
        ([f"{A}=dra", f"{A}=plugin"], "'GPU-a' is said twice"),
    ],
)
def test_what_is_none_is_named_with_rule_and_example(words, said):
    with pytest.raises(errors.UsageError, match="--door") as caught:
        doors.parse(words, Door.PLUGIN)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("known", "held", "stand"),
    [
        pytest.param({}, (), Stand(Door.DRA, Door.DRA), id="new"),
        pytest.param({}, (A,), Stand(Door.PLUGIN, Door.DRA), id="used by who knew no doors"),
        pytest.param({A: Door.PLUGIN}, (), Stand(Door.PLUGIN, Door.DRA), id="was another's"),
        pytest.param({A: Door.DRA}, (A,), Stand(Door.DRA, Door.DRA), id="stays"),
    ],
)
def test_where_a_device_for_claims_stands(known, held, stand):
    assert doors.stands([A], Wanted(Door.DRA), known, held) == {A: stand}


@pytest.mark.parametrize(
    ("now", "wanted", "published", "elsewhere"),
    [
        (Door.PLUGIN, Door.PLUGIN, False, ""),
        (Door.DRA, Door.DRA, True, "dra"),
        (Door.PLUGIN, Door.DRA, False, "dra"),
        (Door.DRA, Door.PLUGIN, False, "dra"),
    ],
)
def test_a_device_that_moves_is_closed_at_both_doors(now, wanted, published, elsewhere):
    stand = Stand(now, wanted)
    assert (stand.published, stand.elsewhere) == (published, elsewhere)


def gates(folder, *words):
    return moving.Doors(folder, doors.parse(words, Door.PLUGIN), settle_seconds=0)


def test_a_device_moves_when_nobody_has_anything_of_it_and_stays_there(tmp_path):
    before = gates(tmp_path)
    before.meet([A, B], ())
    assert before.elsewhere(A) == before.elsewhere(B) == ""
    after = gates(tmp_path, f"{A}=dra")
    after.meet([A, B], ())
    assert after.elsewhere(A) == "dra"
    asked = []

    def held(door):
        asked.append(door)
        return {A}

    assert not after.look(held)
    assert asked == [Door.PLUGIN]
    assert not after.gives(A)
    assert not after.look(lambda _: None)  # nobody knows
    assert after.look(lambda _: {B})
    assert after.published(A)
    assert after.gives(A)
    again = gates(tmp_path, f"{A}=dra")
    again.meet([A, B], ())
    assert again.published(A)
    back = gates(tmp_path)
    back.meet([A, B], ())
    assert not back.published(A)
    assert back.gives(A)  # what was allocated already is prepared
    assert back.elsewhere(A) == "dra"
    assert back.look(lambda _: set())
    assert back.elsewhere(A) == ""
    assert not back.gives(A)


def test_a_file_of_doors_that_is_damaged_is_not_guessed(tmp_path):
    (tmp_path / moving.FILE).write_text('{"GPU-a": "win')
    with pytest.raises(errors.DataError, match="mend it, such as"):
        gates(tmp_path)
