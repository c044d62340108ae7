"""The document of one machine's status page: states of runs, sums and problems."""

import dataclasses
import re

import pytest

from pyvgpu import region
from pyvgpu.run import run_page
from pyvgpu.status import site
from pyvgpu.status.states import HolderState

from .test_top_view import DEVICE, GIB


def document(*samples):
    page = run_page.MachinePage("here", 5.0)
    for seconds, device in enumerate(samples):
        page.add((device,), float(seconds))
    return page.document


def changed(**more):
    """Return the device with the first of its runs changed."""
    first, *others = DEVICE.parts
    return dataclasses.replace(DEVICE, parts=(dataclasses.replace(first, **more), *others))


def states(found):
    return {run["pod"]: run["state"] for run in found["devices"][0]["containers"]}


def test_an_empty_machine_has_a_page():
    found = run_page.MachinePage("here", 5.0).document
    assert (found["node"], found["holder"], found["devices"]) == ("here", "run", [])


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        pytest.param({}, {}, "runs", id="it uses time"),
        pytest.param({"share": 0.0}, {"share": 0.001}, "idle", id="idle"),
        pytest.param({}, {"share": 0.3, "waited": 0.5}, "at its limit", id="throttled at vcore"),
        pytest.param({}, {"waited": 0.5}, "gets less than its share", id="throttled below it"),
        pytest.param({}, {"refused": 1}, "out of memory", id="refused"),
        pytest.param({"refused": 1}, {"refused": 1}, "runs", id="refused earlier"),
        pytest.param(
            {}, {"suspension": region.Suspension(suspended=True)}, "suspended", id="suspended"
        ),
        pytest.param(
            {},
            {"suspension": region.Suspension(suspended=True), "waiting": 3.0},
            "waits for room",
            id="suspended, and wants to work",
        ),
    ],
)
def test_a_run_has_a_state(before, after, state):
    assert states(document(changed(**before), changed(**after)))["train"] == state


def test_a_suspended_run_shows_its_host_memory_and_for_how_long_it_has_waited():
    (train, *_) = document(changed(host=4 * GIB, held=0, waiting=12.4))["devices"][0]["containers"]
    assert (train["usedBytes"], train["hostBytes"], train["waitingSeconds"]) == (0, 4 * GIB, 12)


def test_a_run_beyond_its_quota_is_a_problem():
    (problem,) = document(changed(held=9 * GIB))["problems"]
    assert problem["object"].endswith("/train")
    assert problem["text"].startswith("holds more than its quota")


def test_the_page_has_no_command_lines():
    assert "epochs" not in str(document(DEVICE))


def test_the_page_has_a_colour_for_each_state():
    (kinds,) = re.findall(r"const KINDS = {(.*?)};", site.content("page.js").decode(), re.DOTALL)
    known = set(re.findall(r'"([^"]+)": "(?:good|bad|warn|)"', kinds))
    assert {state.value for state in HolderState} <= known
