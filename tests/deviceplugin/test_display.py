"""gpu-manager's HTTP pages and gRPC service, as its clients read them."""

import json

import grpc
import pytest
import waiting
from google.protobuf import empty_pb2
from granted import GIB

import pyvgpu
from pyvgpu._api import display_pb2_grpc as api_grpc
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.audit import quota_audit
from pyvgpu.deviceplugin.containers.process_owner import Whose
from pyvgpu.deviceplugin.devices.health import ProbeResult
from pyvgpu.deviceplugin.gpu_manager import display
from pyvgpu.deviceplugin.telemetry import metric_families, usage

A, B = "GPU-a", "GPU-b"


def grant(number, *shares):
    owner = grants.Owner(f"uid-{number}", "team", f"pod-{number}", "main")
    return grants.Grant(f"{number:016x}", frozenset({f"c{number}"}), 1.0, owner, shares=shares)


SHARE = grant(1, datatypes.NodeShare(A, 30, 2 * GIB))
WHOLE = grant(2, datatypes.NodeShare(B, 100, 80 * GIB))


@pytest.fixture
def sources():
    shown = metric_families.MetricSources(
        grants=lambda: [SHARE, WHOLE],
        devices=lambda: [
            datatypes.NodeDevice(A, 0, 80 * GIB),
            datatypes.NodeDevice(B, 1, 80 * GIB),
        ],
        answers=lambda: {
            A: ProbeResult("", 5 * GIB, 0.4, "0000:3B:00.0"),
            B: ProbeResult("", 70 * GIB, 0.9, "0000:D8:00.0"),
        },
        use=lambda *_: usage.Use(0.255, 9.0, GIB),
        findings=tuple,
        audits=lambda: True,
    )
    seen = quota_audit.ProcessSnapshot(
        {A: {12: GIB, 10: GIB, 11: GIB}, B: {20: GIB}},
        {
            10: Whose(SHARE.id, "uid-1"),
            11: Whose("f" * 16, "uid-9"),
            12: Whose(SHARE.id, "uid-1"),
            20: Whose("", "uid-2"),
        },
        (),
    )
    marks = {"uid-1": display.PodOwner("alice", "east")}
    return display.DisplaySources(
        "node-1", shown, lambda: seen, lambda uid: marks.get(uid, display.NO_MARKS)
    )


def test_usage_matches_gpu_manager_and_omits_zeros(sources):
    page = display.answers(sources)["/usage"]
    assert page.kind == "application/json"
    assert json.loads(page.content()) == {
        "usage": {
            "uid-1": {
                "stat": {
                    "main": {
                        "dev": [
                            {
                                "id": "0000:3B:00.0",
                                "card_idx": "0",
                                "gpu": 25.5,
                                "mem": 1024,
                                "pids": [10, 12],
                            }
                        ]
                    }
                },
                "project": "team",
                "user": "alice",
                "cluster": "east",
                "spec": {"main": {"gpu": 0.3, "mem": 2048}},
            },
            "uid-2": {
                "stat": {
                    "main": {
                        "dev": [
                            {
                                "id": "0000:D8:00.0",
                                "card_idx": "1",
                                "gpu": 90,
                                "mem": 71680,
                                "pids": [20],
                            }
                        ]
                    }
                },
                "project": "team",
                "spec": {"main": {"gpu": 1, "mem": 81920}},
            },
        }
    }


def test_metrics_match_gpu_manager(sources):
    text = display.answers(sources)["/metric"].content().decode()
    labels = 'pod_name="pod-1",namespace="team",node="node-1",container_name="main"'
    for line in (
        "# TYPE container_gpu_utilization gauge",
        f'container_gpu_utilization{{{labels},gpu="gpu0"}} 25.5',
        f'container_gpu_utilization{{{labels},gpu="total"}} 25.5',
        f'container_gpu_memory_total{{{labels},gpu_memory="gpu0"}} 1024.0',
        f'container_gpu_memory_total{{{labels},gpu_memory="total"}} 1024.0',
        f'container_request_gpu_utilization{{{labels},req_of_gpu="total"}} 0.3',
        f'container_request_gpu_memory{{{labels},req_of_gpu_memory="total"}} 2048.0',
    ):
        assert f"{line}\n" in text


def test_graph_and_version_are_strings_in_json(sources):
    pages = display.answers(sources)
    graph = json.loads(pages["/graph"].content())["graph"]
    assert graph.startswith("ROOT:0\n|---SYS (aval: 0, pids: [10 11 12 20], usedMemory: ")
    assert f"|   |---GPU0 (pids: [10 11 12], usedMemory: {5 * GIB}, " in graph
    assert f"allocatableCores: 70, allocatableMemory: {78 * GIB})\n" in graph
    assert json.loads(pages["/version"].content()) == {"version": pyvgpu.__version__}


def test_no_grants_give_an_empty_object(sources):
    empty = display.DisplaySources(
        sources.node,
        metric_families.MetricSources(
            list, tuple, dict, lambda *_: usage.NOTHING, tuple, lambda: True
        ),
        lambda: quota_audit.NOTHING,
        display.no_marks,
    )
    assert display.answers(empty)["/usage"].content() == b"{}"


def test_grpc_service_returns_the_same(sources, tmp_path):
    socket = tmp_path / "gm.sock"
    socket.write_text("left by one that was killed")
    with display.serving(socket, sources), grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = api_grpc.GPUDisplayStub(channel)
        nothing = empty_pb2.Empty()
        assert stub.Version(nothing, timeout=waiting.PROMPT).version == pyvgpu.__version__
        assert stub.PrintGraph(nothing, timeout=waiting.PROMPT).graph.startswith("ROOT:0\n")
        pods = stub.PrintUsages(nothing, timeout=waiting.PROMPT).usage
    assert set(pods) == {"uid-1", "uid-2"}
    pod = pods["uid-1"]
    assert (pod.project, pod.user, pod.cluster) == ("team", "alice", "east")
    assert set(pod.stat) == set(pod.spec) == {"main"}
    (one,) = pod.stat["main"].dev
    assert (one.id, one.card_idx) == ("0000:3B:00.0", "0")
    assert (one.gpu, one.mem) == (25.5, 1024)
    assert list(one.pids) == [10, 12]
    assert pod.spec["main"].gpu == pytest.approx(0.3)


def test_marks_are_read_from_the_pods_env_and_annotations():
    pod = {
        "metadata": {"annotations": {"clusterName": "east"}},
        "spec": {
            "containers": [
                {"env": [{"name": "A", "valueFrom": {}}, {"name": "SUBMITTER", "value": "bob"}]},
                {"env": [{"name": "SUBMITTER", "value": "eve"}]},
            ]
        },
    }
    assert display.marks_of(pod) == display.PodOwner("bob", "east")
    assert display.marks_of({"metadata": {}, "spec": {"containers": [{}]}}) == display.NO_MARKS
