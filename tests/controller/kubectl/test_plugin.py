"""Commands of `kubectl vgpu` against a fake API server, with real agents' metrics."""

import datetime
import json

import claim_objects
import pytest
import scheduling_api as make

from pyvgpu import cli, names
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.controller.kubectl import agent_metrics, table_rows
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.audit import quota_audit
from pyvgpu.deviceplugin.devices.health import ProbeResult
from pyvgpu.deviceplugin.telemetry import metric_families, usage
from pyvgpu.machine import memory_limit

GIB = 1 << 30
AGENTS = "/api/v1/namespaces/pyvgpu-agent/pods"
FIRST, SECOND = "GPU-node-1-0", "GPU-node-1-1"


def agent(node):
    """Return an agent's pod like that of deploy/agent."""
    port = {"name": "metrics", "containerPort": 5678}
    container = {"name": "agent", "args": ["device-plugin", "--run=/run"], "ports": [port]}
    name = {"namespace": "pyvgpu-agent", "name": f"agent-{node}"}
    return {"metadata": name, "spec": {"nodeName": node, "containers": [container]}}


SHARE = datatypes.NodeShare(FIRST, 30, 2 * GIB)


def metrics_text(*used, findings=(), audits=True, limit=memory_limit.NONE, share=SHARE):
    """Return an agent's metrics of pods in namespace n on the first device, with their *used*."""
    granted = [
        grants.Grant(
            f"{at:016x}",
            frozenset({f"c{at}"}),
            1.0,
            grants.Owner("u", "n", pod, "main"),
            shares=(share,),
        )
        for at, (pod, _) in enumerate(used)
    ]
    uses = {grant.id: use for grant, (_, use) in zip(granted, used, strict=True)}
    meter = metric_families.AgentMeter()
    meter.show(
        metric_families.MetricSources(
            grants=lambda: granted,
            devices=lambda: make.devices("node-1"),
            answers=lambda: {FIRST: ProbeResult("", 3 * GIB, 0.5)},
            use=lambda grant_id, _: uses[grant_id],
            findings=lambda: findings,
            audits=lambda: audits,
            driver_limit=lambda _: limit,
        )
    )
    return meter.text().decode()


def put(api, name, vcore, labels=None):
    """Create a pod on the first device, with the scheduler's annotation."""
    thing = make.pod(name, vcore, 8, nodeName="node-1")
    thing["metadata"]["labels"] = labels or {}
    share = datatypes.NodeShare(FIRST, vcore, 2 * GIB)
    choice = annotations.DeviceChoice(thing["metadata"]["uid"], "node-1", {"main": (share,)})
    sealed = annotations.seal(choice, make.KEY)
    thing["metadata"]["annotations"] = {names.DEVICES_ANNOTATION: sealed}
    api.put(make.path(name), thing)


@pytest.fixture
def world(plugin):
    """Run the plugin against an API server with a node, an agent and three pods."""
    api = plugin.api
    published = annotations.Published(
        make.UNIT,
        make.devices("node-1"),
        placed={"uid-placed": {"side": (datatypes.NodeShare(SECOND, 20, GIB),)}},
    )
    noted = {names.NODE_DEVICES_ANNOTATION: annotations.publish(published)}
    api.put("/api/v1/nodes/node-1", {"metadata": {"name": "node-1", "annotations": noted}})
    api.put(f"{AGENTS}/agent-node-1", agent("node-1"))
    put(api, "train-0", 30, {"app": "train"})
    api.put(make.path("placed"), make.pod("placed", 20, 4, nodeName="node-1"))
    api.put(make.path("waits"), make.pod("waits", 20, 4))
    api.texts[f"{AGENTS}/agent-node-1:5678/proxy/metrics"] = metrics_text(
        ("train-0", usage.Use(0.284, held_bytes=GIB + 5, refused=3))
    )
    return plugin


def test_ps_shows_allocations_by_scheduler_and_agent(world):
    code, out, err = world("ps")
    assert (code, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == [
        *("NAMESPACE", "POD", "CONTAINER", "NODE", "DEVICE"),
        *("VCORE", "VMEMORY", "STATE", "ISOLATION"),
    ]
    assert rows == [
        "n           placed    side        node-1   gpu1     20      1GiB      running   quota",
        "n           train-0   main        node-1   gpu0     30      2GiB      running   quota",
    ]


def test_ps_selects_by_label_and_has_wide_columns(world):
    _, out, _ = world("ps", "-l", "app=train", "-o", "wide", "--no-headers")
    assert out.split() == [
        *("n", "train-0", "main", "node-1", "gpu0", "30", "2GiB", "running", "quota"),
        *("T4", "hard", "normal", FIRST),
    ]


def test_ps_of_all_namespaces_shows_claims_too(world):
    api = world.api
    listed = claim_objects.slice_of("n9", claim_objects.device(0))
    api.put(f"{claim_objects.GROUP}/resourceslices/n9", listed)
    claim = claim_objects.got(claim_objects.claim("c"), "user", ("n9", 0, "40", "2Gi"))
    api.put(f"{claim_objects.GROUP}/namespaces/team/resourceclaims/c", claim)
    user = claim_objects.pod("user")
    api.put("/api/v1/namespaces/team/pods/user", {**user, "spec": {"nodeName": "n9"}})
    _, out, _ = world("ps", "-A")
    assert out.splitlines()[-1].split() == [
        *("team", "user", "-", "n9", "gpu0", "40", "2GiB", "running", "quota"),
    ]


def test_kinds_that_may_not_be_listed_are_left_out_and_named(world):
    world.api.forbidden = ("/api/v1/nodes", "/apis/")
    code, out, err = world("ps")
    assert code == 0
    assert out.splitlines()[1].split()[:7] == ["n", "train-0", "main", "node-1", "-", "30", "2GiB"]
    assert "you may not list nodes" in err


def test_pods_that_may_not_be_listed_are_an_error(world):
    world.api.forbidden = ("/api/v1/namespaces/n/pods",)
    code, out, err = world("ps")
    assert (code, out) == (69, "")
    assert "403" in err


def test_top_shows_usage_beside_allocation(world):
    code, out, err = world("top")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][5:] == ["VCORE", "USED", "VMEMORY", "HELD", "STATE", "ISOLATION"]
    assert lines[1][1:-2] == ["placed", "side", "node-1", "gpu1", "20", "-", "1GiB", "-"]
    assert lines[2][1:-2] == ["train-0", "main", "node-1", "gpu0", "30", "28", "2GiB", "1GiB"]


def test_top_prints_json_with_exact_numbers(world):
    _, out, _ = world("top", "pods", "-l", "app=train", "-o", "json")
    (part,) = json.loads(out)["parts"]
    assert part == {
        "namespace": "n",
        "pod": "train-0",
        "container": "main",
        "node": "node-1",
        "device": "gpu0",
        "uuid": FIRST,
        "model": "T4",
        "vcore": 30,
        "policy": "hard",
        "priority": "normal",
        "state": "running",
        "isolation": "quota",
        "vmemoryBytes": 2 * GIB,
        "usedVcore": 28.4,
        "heldBytes": GIB + 5,
        "hostBytes": 0,
        "driverLimitBytes": None,
        "refused": 3,
    }


@pytest.mark.parametrize("limit", [0, 2 * GIB + memory_limit.MARGIN_BYTES])
def test_explain_shows_memory_limits_of_a_running_container(world, limit):
    set_to = memory_limit.Limit(("/sys/fs/cgroup/a",), (limit,)) if limit else memory_limit.NONE
    answer = metrics_text(("train-0", usage.NOTHING), limit=set_to)
    world.api.texts[f"{AGENTS}/agent-node-1:5678/proxy/metrics"] = answer
    code, out, err = world("explain", "train-0")
    assert (code, err) == (0, "")
    driver = ", and by the driver to 2.1GiB" if limit else ""
    held = f"memory of container main: held to 2GiB of {FIRST} by the shim{driver}"
    assert f"{held}; isolation: quota\n" in out
    document = json.loads(world("explain", "train-0", "--json")[1])
    (part,) = document["memory"]
    assert (part["quotaBytes"], part["driverLimitBytes"]) == (2 * GIB, limit or None)
    assert part["isolation"] == "quota"
    world.api.forbidden = (AGENTS,)
    code, out, err = world("explain", "train-0")
    assert (code, err) == (0, "")
    assert "memory of" not in out


@pytest.mark.parametrize(
    ("share", "by", "means"),
    [
        pytest.param(
            datatypes.NodeShare(FIRST, 12, 2 * GIB, "1g.10gb@6"),
            f"of {FIRST} by its MIG device",
            "hardware",
            id="an instance of its own",
        ),
        pytest.param(
            datatypes.NodeShare("MIG-1", 30, 2 * GIB),
            "of MIG-1 by the shim",
            "hardware+quota",
            id="a share of a MIG device",
        ),
        pytest.param(
            datatypes.NodeShare(FIRST, 100, 2 * GIB),
            f"of {FIRST} by the device, which no other container has",
            "whole-device",
            id="a whole device",
        ),
    ],
)
def test_explain_and_json_name_what_holds_a_container(world, share, by, means):
    text = metrics_text(("train-0", usage.NOTHING), share=share)
    world.api.texts[f"{AGENTS}/agent-node-1:5678/proxy/metrics"] = text
    code, out, _ = world("explain", "train-0")
    assert code == 0
    assert f"held to 2GiB {by}; isolation: {means}\n" in out
    document = json.loads(world("explain", "train-0", "--json")[1])
    assert [part["isolation"] for part in document["memory"]] == [means]


def test_agents_that_report_no_isolation_are_explained_without_it(world):
    path = f"{AGENTS}/agent-node-1:5678/proxy/metrics"
    older = [line for line in world.api.texts[path].splitlines() if "isolation" not in line]
    world.api.texts[path] = "\n".join(older) + "\n"
    code, out, _ = world("explain", "train-0")
    assert code == 0
    assert f"held to 2GiB of {FIRST} by the shim; isolation: unknown\n" in out


def test_explain_names_time_slices(world):
    thing = make.pod("sliced", 1, 1, nodeName="node-1")
    limits = {names.GPU_SHARED_RESOURCE: "1"}
    thing["spec"]["containers"] = [{"name": "main", "resources": {"limits": limits}}]
    thing["status"] = {"phase": "Running"}
    world.api.put(make.path("sliced"), thing)
    code, out, _ = world("explain", "sliced")
    assert code == 0
    assert (
        "container main: 1 pyvgpu.io/gpu-shared, the whole device without limits; isolation: "
        "time-slices\n" in out
    )


def test_top_nodes_lists_every_device(world):
    _, out, _ = world("top", "nodes")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0][3:] == ["PODS", "VCORE", "USED", "VMEMORY", "OF", "HELD", "STATE", "ISOLATION"]
    first = ["node-1", "gpu0", "T4", "1", "30", "50", "2GiB", "16GiB", "3GiB", "healthy", "quota"]
    assert lines[1] == first
    assert lines[2][3:5] == ["1", "20"]


@pytest.mark.parametrize(
    ("forbidden", "said"),
    [
        pytest.param((AGENTS,), "you may not list pods in pyvgpu-agent", id="agents"),
        pytest.param((f"{AGENTS}/agent-node-1:",), "get pods/proxy in pyvgpu-agent", id="proxy"),
    ],
)
def test_top_without_metrics_shows_allocations_and_names_the_missing_permission(
    world, forbidden, said
):
    del world.api.texts[f"{AGENTS}/agent-node-1:5678/proxy/metrics"]
    world.api.forbidden = forbidden
    code, out, err = world("top", "-l", "app=train")
    assert code == 0
    assert out.splitlines()[1].split()[5:] == ["30", "-", "2GiB", "-", "running", "quota"]
    assert said in err


def test_top_of_an_unknown_kind_is_refused(world):
    code, _, err = world("top", "deployments")
    assert code == 64
    assert "must be pods or nodes" in err


def test_an_empty_result_is_not_an_error(world):
    code, out, err = world("ps", "-n", "empty")
    assert (code, out, err) == (0, "", "No pods with devices found in empty namespace.\n")


def event(name, reason, seen, message="process 7 uses gpu0"):
    return {
        "metadata": {"uid": name, "namespace": "n", "creationTimestamp": "2026-11-22T03:00:00Z"},
        "involvedObject": {"kind": "Pod", "namespace": "n", "name": name},
        "reason": reason,
        "message": message,
        "lastTimestamp": seen,
        "count": 2,
    }


def test_audit_shows_events_and_each_agents_findings(world):
    now = datetime.datetime.now(datetime.UTC)
    seen = (now - datetime.timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, reason in (("bad", "VGPUQuotaBypassed"), ("other", "VGPURefused")):
        world.api.put(f"/api/v1/namespaces/n/events/{name}", event(name, reason, seen))
    found = quota_audit.Violation(
        quota_audit.ViolationKind.NO_SHIM, FIRST, (7,), "", "u", GIB, "x"
    )
    path = f"{AGENTS}/agent-node-1:5678/proxy/metrics"
    world.api.texts[path] = metrics_text(findings=[found])
    code, out, err = world("audit")
    assert (code, err) == (0, "")
    events, nodes = out.split("\n\n")
    assert [line.split() for line in events.splitlines()][1:] == [
        ["n", "5h", "VGPUQuotaBypassed", "bad", "2", "process", "7", "uses", "gpu0"]
    ]
    assert [line.split() for line in nodes.splitlines()] == [
        ["NODE", "ACTIVE", "NO-SHIM", "FOREIGN", "ABOVE", "TIME", "TAMPERED", "OUTSIDE"],
        ["node-1", "yes", "1", "0", "0", "0", "0", "0"],
    ]


def test_audit_shows_agents_without_audits(world):
    path = f"{AGENTS}/agent-node-1:5678/proxy/metrics"
    world.api.texts[path] = metrics_text(audits=False)
    _, out, err = world("audit")
    assert out.splitlines()[1].split() == ["node-1", "no", "-", "-", "-", "-", "-", "-"]
    assert err == "No events of processes past their quota found in n namespace.\n"


def test_kinds_of_findings_match_the_agents():
    assert set(table_rows.KINDS) == {kind.value for kind in quota_audit.ViolationKind}
    assert all(reason in agents_reasons() for reason in table_rows.PAST_QUOTA)


def agents_reasons():
    from pyvgpu.deviceplugin.grants import events

    return {reason.value for reason in events.Reason}


def test_agents_metrics_are_parsed():
    read = agent_metrics.read(metrics_text(("a", usage.Use(0.5)), ("b", usage.NOTHING)))
    assert read.used(("n", "a", "main", FIRST))["vcore_used_ratio"] == 0.5
    assert read.used(("n", "a", "", FIRST))["vcore_used_ratio"] == 0.5  # by a claim
    assert read.used(("n", "c", "main", FIRST)) == {}
    assert read.devices[FIRST]["used_ratio"] == 0.5
    assert read.findings == dict.fromkeys(table_rows.KINDS, 0)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([""], ["audit", "explain", "ps", "resume", "suspend", "top"]),
        ([], ["audit", "explain", "ps", "resume", "suspend", "top"]),
        (["a"], ["audit"]),
        (["--v"], ["--version"]),
        (["top", ""], ["nodes", "pods"]),
        (["top", "n"], ["nodes"]),
        (["top", "nodes", ""], []),
        (["ps", "--all"], ["--all-namespaces"]),
        (["ps", "-o", ""], ["json", "wide"]),
        (["ps", "-n", ""], []),
        (["explain", "--j"], ["--json"]),
        (["nonsense", ""], []),
    ],
)
def test_shell_completion_for_kubectl(capsys, words, found):
    assert cli.kubectl_complete(words) == 0
    assert capsys.readouterr().out.splitlines() == [*found, ":4"]


@pytest.mark.parametrize(
    "option", ["--help", "top", "ps", "suspend", "resume", "audit", "explain"]
)
def test_help_has_examples(capsys, option):
    with pytest.raises(SystemExit):
        cli.kubectl_main([option] if option == "--help" else [option, "--help"])
    assert "kubectl vgpu" in capsys.readouterr().out
