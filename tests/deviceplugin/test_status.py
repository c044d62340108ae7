"""The document of a node's status page: usage beside allocation."""

import pytest
import status_node
from status_node import DEVICES, EVENTS, GIB, Tenant

from pyvgpu.deviceplugin.telemetry import status_history
from pyvgpu.status import history

STEP = history.STEP_SECONDS


@pytest.fixture(scope="module")
def document():
    return status_node.Node().document()


def container(document, pod):
    return next(
        tenant
        for device in document["devices"]
        for tenant in device["containers"]
        if tenant["pod"] == pod
    )


def test_devices_show_usage_and_allocation(document):
    first = document["devices"][0]
    assert (first["label"], first["model"]) == ("gpu0", status_node.MODEL)
    assert first["allocated"] == 0.95
    assert first["allocatedBytes"] == 72 * GIB
    assert first["memoryBytes"] == 80 * GIB
    assert first["used"] == pytest.approx(sum(tenant["used"] for tenant in first["containers"]))


def test_devices_show_state_and_reason(document):
    assert [(device["state"], device["why"]) for device in document["devices"]] == [
        ("healthy", ""),
        ("healthy", ""),
        ("cordoned", ""),
        ("unhealthy", "Xid 94 (contained ECC error)"),
    ]


def test_totals_are_sums_of_the_devices(document):
    sums = document["totals"]
    assert (sums["devices"], sums["unhealthy"], sums["cordoned"], sums["containers"]) == (
        4,
        1,
        1,
        7,
    )
    assert sums["allocated"] == pytest.approx(2.95)
    assert sums["memoryBytes"] == 320 * GIB


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        ("llama-serve-0", "at its limit"),
        ("embed-7d9c4-x2vkq", "runs"),
        ("notebook-ada", "idle"),
        ("train-resnet-0", "runs"),
        ("notebook-grace", "suspended"),
        ("segment-5", "gets less than its share"),
        ("segment-6", "out of memory"),
    ],
)
def test_container_state(document, pod, state):
    assert container(document, pod)["state"] == state


def test_suspended_container_shows_its_host_memory(document):
    found = container(document, "notebook-grace")
    assert (found["usedBytes"], found["hostBytes"]) == (0, int(9.6 * GIB) >> 20 << 20)


def test_devices_and_containers_show_their_isolation(document):
    assert {device["isolation"] for device in document["devices"]} == {"quota"}
    shown = {pod: container(document, pod)["isolation"] for pod in ("segment-5", "train-resnet-0")}
    assert shown == {"segment-5": "quota", "train-resnet-0": "whole-device"}


def test_elastic_container_shows_its_limit(document):
    found = container(document, "notebook-ada")
    assert (found["allocated"], found["limit"]) == (0.1, 0.4)


def test_history_is_bounded(document):
    for device in document["devices"]:
        lines = [device["lines"], *(one["lines"] for one in device["containers"])]
        for line in lines:
            assert {len(line["used"]), len(line["memoryMiB"])} == {history.POINTS}
        day = device["day"]
        assert day["seconds"] * len(day["used"]) <= 86_400
        assert len(day["used"]) == len(day["memoryMiB"]) > 0
    newest = container(document, "train-resnet-0")
    assert newest["lines"]["used"][-1] == round(1000 * newest["used"])
    assert newest["lines"]["memoryMiB"][-1] == newest["usedBytes"] >> 20


def test_problems_are_listed(document):
    assert [problem["object"] for problem in document["problems"]] == ["gpu3", "audit"]


def test_agent_troubles_are_problems():
    node = status_node.Node(samples=1)
    troubles = (("agent", "nothing was collected for 130 s"), ("kubelet", ""))
    found = node.recent.document("node-1", node.sources, troubles)["problems"]
    assert found[0] == {"object": "agent", "text": "nothing was collected for 130 s"}
    assert "kubelet" not in {problem["object"] for problem in found}


def test_events_are_listed_newest_first(document):
    assert [event["reason"] for event in document["events"]] == [
        "VGPURefused",
        "VGPUDeviceUnhealthy",
        "VGPUResized",
    ]
    assert document["events"][0]["object"] == "lab/sweep-12"
    assert document["events"][0]["at"] == "2026-11-22T10:31:00Z"
    assert [event["type"] for event in document["events"]] == ["Warning", "Warning", "Normal"]


def test_number_of_events_is_bounded():
    known = status_history.Recent(lambda: 1.0)
    for _ in range(3 * status_history.MOST_EVENTS):
        known.add_event(EVENTS[0])
    found = known.document("node-1", status_node.Node(samples=1).sources, ())
    assert len(found["events"]) == status_history.MOST_EVENTS


def test_page_exists_before_the_first_poll():
    found = status_node.Node((), samples=0).document()
    assert found["totals"]["containers"] == 0
    assert found["at"] == ""
    assert [device["lines"]["used"] for device in found["devices"]] == [[]] * len(DEVICES)


def test_history_of_ended_containers_is_dropped():
    node = status_node.Node(samples=2)
    node.grants.pop()
    node.tenants = node.tenants[:-1]
    node.sample(2, 2)
    assert not any(
        tenant["pod"] == "segment-6"
        for one in node.document()["devices"]
        for tenant in one["containers"]
    )
    assert all("segment-6" not in key for key in node.recent._lines._lines)


def test_state_needs_two_polls():
    waits = Tenant("a/b/c", 0, 50, GIB, 0.1, waits=1.0, refused=3)
    found = status_node.Node((waits,), samples=1).document()
    assert container(found, "b")["state"] == "runs"


def day_of(node):
    return node.document()["devices"][1]["day"]["used"]


def test_day_continues_after_a_restart_of_the_agent(tmp_path):
    node = status_node.Node(samples=0)
    node.recent.restore(tmp_path)
    for step in range(3):
        node.at = status_node.AT + step * STEP
        node.sample(step, 3)
    before = day_of(node)
    assert len(before) == 3
    next_one = status_node.Node(samples=0)
    next_one.at = node.at + STEP
    next_one.recent.restore(tmp_path)  # without an orderly end of the first: it was killed
    next_one.sample(3, 3)
    assert day_of(next_one)[:-1] == before


def test_day_is_complete_after_an_orderly_restart(tmp_path):
    node = status_node.Node(samples=0)
    node.recent.restore(tmp_path)
    node.sample(0, 1)
    node.recent.save()
    next_one = status_node.Node(samples=0)
    next_one.at = node.at + STEP
    next_one.recent.restore(tmp_path)
    next_one.sample(1, 1)
    assert day_of(next_one)[:-1] == day_of(node)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"seconds": 300, "days": {"GPU-', id="cut short"),
        pytest.param(b" " * (status_history.MOST_BYTES + 1), id="too large"),
    ],
)
def test_damaged_file_of_the_day_is_reported_once_and_replaced(tmp_path, caplog, content):
    file = tmp_path / status_history.FILE
    file.write_bytes(content)
    node = status_node.Node(samples=0)
    node.recent.restore(tmp_path)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"the charts of the last day start empty: {file}: ")
    node.sample(0, 1)
    node.recent.save()
    caplog.clear()
    next_one = status_node.Node(samples=0)
    next_one.at = node.at
    next_one.recent.restore(tmp_path)
    next_one.sample(1, 1)
    assert len(day_of(next_one)) == 1
    assert not caplog.records


def test_day_that_cannot_be_stored_is_reported_once_until_it_can(tmp_path, caplog):
    state = tmp_path / "state"
    node = status_node.Node(samples=0)
    node.recent.restore(state)  # the folder does not exist
    node.sample(0, 1)
    for _ in range(3):
        node.recent.save()
    (record,) = caplog.records
    file = state / status_history.FILE
    assert record.getMessage().startswith(f"cannot store the charts of the last day: {file}: ")
    state.mkdir()
    node.recent.save()
    assert [path.name for path in state.iterdir()] == [status_history.FILE]
    assert len(caplog.records) == 1


def test_without_a_folder_nothing_is_stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    node = status_node.Node(samples=2)
    node.recent.save()
    assert not list(tmp_path.iterdir())
