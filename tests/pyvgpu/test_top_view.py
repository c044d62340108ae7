"""`pyvgpu top`: keys, order and filter of the runs, and the columns of narrow terminals."""

import dataclasses
import os

import pytest
from rich.console import Console

from pyvgpu import errors, quota, region
from pyvgpu.cli import top, top_view
from pyvgpu.run import runs

GIB = 1 << 30
LIMITS = region.DeviceLimits(
    uuid="GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
    vcore=30,
    vcore_limit=30,
    policy=quota.TimePolicy.HARD,
    vmemory=4 * GIB,
    memory_total=80 * GIB,
    context_reserve=0,
    green_reserve=0,
)
OTHER_USER = 54321  # has no name


def part(name, created, vcore, vmemory, **more):
    given = {
        "uid": os.geteuid(),
        "command": "/usr/bin/python",
        "command_line": f"python {name}.py --epochs 3",
        "share": 0.25,
        "held": GIB,
        **more,
    }
    return runs.RunShare(
        run_id=name,
        name=name,
        pid=7,
        created=created,
        requested_vcore=vcore,
        limits=dataclasses.replace(LIMITS, vcore=vcore, vcore_limit=vcore, vmemory=vmemory),
        priority=quota.Priority.NORMAL,
        refused=0,
        processes=(runs.Process(4711, "python", GIB, 0.0),),
        waited=0.0,
        history=(0.2, 0.25) * 60,
        tampered="",
        driver_limit=None,
        driver_why="",
        **given,
    )


DEVICE = runs.DeviceView(
    LIMITS.uuid,
    "pyvgpu simulated H100",
    80 * GIB,
    (
        part("train", 1.0, 30, 8 * GIB, share=0.1),
        part("eval", 2.0, 50, 4 * GIB, held=3 * GIB),
        part("serve", 3.0, 20, 16 * GIB, uid=OTHER_USER, command_line="", share=None, held=None),
    ),
)


def shown(keys, devices=(DEVICE,)):
    view = top_view.TopView()
    for key in keys:
        view = view.pressed(key)
    return [each.name for device in view.arranged(devices) for each in device.shown]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        pytest.param("", "train eval serve", id="age"),
        pytest.param("r", "serve eval train", id="reversed"),
        pytest.param("n", "serve eval train", id="name: 54321/serve is first"),
        pytest.param("v", "eval train serve", id="vcore"),
        pytest.param("vr", "serve train eval", id="vcore, reversed"),
        pytest.param("m", "serve train eval", id="vmemory"),
        pytest.param("s", "eval train serve", id="share"),
        pytest.param("u", "eval train serve", id="memory in use"),
        pytest.param("vrm", "serve train eval", id="a new order is not reversed"),
        pytest.param("/EVAL\n", "eval", id="filter by name"),
        pytest.param("/train.py\nv", "train", id="filter by command"),
        pytest.param(f"/{OTHER_USER}\n", "serve", id="filter by user"),
        pytest.param("/python\n", "train eval serve", id="filter by program"),
        pytest.param("/evalx\x7f", "eval", id="backspace"),
        pytest.param("/eval\x1b", "train eval serve", id="escape ends and clears it"),
        pytest.param("/eval\n\x1b", "train eval serve", id="escape clears it later"),
        pytest.param("/nothing", "", id="no run"),
        pytest.param("zx\x00ä", "train eval serve", id="other keys change nothing"),
    ],
)
def test_keys_order_and_filter_the_runs(keys, names):
    assert shown(keys) == names.split()


def test_arrow_keys_change_nothing():
    view = top_view.TopView()
    assert view.pressed("\x1b[A") == view


def test_q_quits_unless_it_is_typed_into_the_filter():
    view = top_view.TopView()
    assert view.pressed("q").quit
    assert not view.pressed("/q").quit
    assert view.pressed("/q").wanted == "q"
    assert view.pressed("/\x04").quit


def test_an_unknown_order_is_refused_with_the_known_ones():
    with pytest.raises(errors.UsageError, match=r"--sort 'size': must be one of age, name"):
        top_view.parse_sort("size")


def screen(width, view, keys=""):
    console = Console(width=width, force_terminal=False, highlight=False)
    with console.capture() as text:
        console.print(top.screen((DEVICE,), 1.0, view, width, keys))
    return text.get().splitlines()


def test_help_lists_every_key():
    lines = screen(110, top_view.TopView().pressed("h"), top.KEYS)
    assert lines[0].endswith("h help  q quit")
    for keys, words in top_view.HELP:
        assert any(line.split(maxsplit=len(keys.split()))[-1:] == [words] for line in lines), words
    assert not any("sort by" in line for line in screen(110, top_view.TopView(), top.KEYS))


@pytest.mark.parametrize("width", [60, 80, 110, 160])
def test_every_width_has_the_quota_and_the_share(width):
    lines = screen(width, top_view.TopView(), top.KEYS)
    assert all(len(line) <= width for line in lines)
    (line,) = [line for line in lines if line.startswith(" train ")]
    for text in ("30", "10.0 %", "1.00 GiB", "8.00 GiB"):
        assert text in line
    assert ("python" in line) == (width >= 80)
    assert ("train.py --epochs 3" in line) == (width >= 160)
    assert any("12.00 GiB" in line or "28.00 GiB of 80.00 GiB reserved" in line for line in lines)


def test_the_filter_does_not_change_the_sums_of_a_device():
    assert top_view.TopView(wanted="eval").arranged((DEVICE,))[0].reserved_vcore == 100


def test_other_users_commands_are_shown_without_arguments():
    lines = screen(160, top_view.TopView())
    (line,) = [line for line in lines if f"{OTHER_USER}/serve" in line]
    assert line.rstrip().endswith(" python")
