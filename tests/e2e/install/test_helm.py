"""Installation, upgrade, rollback and removal of the chart with the real helm."""

import json
from pathlib import Path

import agents
import audit_log
import charted
import charts
import documented
import permissions
import pytest
import rig
import undisturbed
from agents import UNIT, container
from waiting import wait_until

from pyvgpu import names
from pyvgpu.controller.scheduler import config_check
from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.kube import yaml_file

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

PAGE = "start-cluster.md"
REMOVED = "install.md"


@pytest.fixture(scope="module")
def space(release):
    with rig.space() as made:
        yield made


@pytest.fixture(scope="module")
def running(space):
    """Return a pod with a share that runs through all tests, and its processes."""
    return undisturbed.start(space)


def secrets():
    """Return the data of the Secrets that the programs have filled."""
    kept = (
        ("secret/pyvgpu-webhook", charts.NAMESPACE),
        ("secret/pyvgpu-scheduler", charts.NAMESPACE),
        ("secret/pyvgpu-placement", charts.AGENTS),
    )
    found = [charts.run("kubectl", "get", kind, "-n", where, "-o", "json") for kind, where in kept]
    return [json.loads(secret)["data"] for secret in found]


def test_second_scheduler_chooses_a_share_that_is_enforced(space, running):
    pod, _ = running
    assert pod["spec"]["schedulerName"] == "pyvgpu"
    chosen = pod["metadata"]["annotations"][names.DEVICES_ANNOTATION]
    other = undisturbed.run_beside(space, "other", 80, 16)
    assert other["metadata"]["annotations"][names.DEVICES_ANNOTATION] != chosen
    usual = rig.pod("usual", rig.container("a", "true"))
    space.create("pods", usual)
    ended = space.until("pods", "usual", rig.has_ended)
    assert (rig.phase(ended), ended["spec"]["schedulerName"]) == ("Succeeded", "default-scheduler")


def test_agents_wait_for_the_key_without_restarts(release):
    """The Secret is empty until the scheduler first becomes leader."""
    command = ("kubectl", "get", "pods", "--namespace", charts.AGENTS, "--output=json")
    pods = json.loads(charts.run(*command))["items"]
    restarts = {
        (pod["metadata"]["name"], one["name"]): one["restartCount"]
        for pod in pods
        for one in pod["status"]["containerStatuses"]
    }
    assert restarts
    assert not any(restarts.values()), restarts


def test_users_see_the_usage_and_a_healthy_agent(space, running, release):
    def is_reported():
        said = charts.run("kubectl", "vgpu", "top", "--namespace", space.name, "-o", "json")
        (part,) = json.loads(said)["parts"]
        assert (part["pod"], part["container"], part["vcore"]) == ("stays", "a", 30)
        assert part["vmemoryBytes"] == undisturbed.UNITS * UNIT
        return undisturbed.HELD < part["heldBytes"] < undisturbed.UNITS * UNIT  # from the agent

    wait_until(is_reported)
    where = ("--state", json.loads(release.read_text())["agent"]["state"])
    inside = (
        "exec",
        "--namespace",
        charts.AGENTS,
        "daemonset/agent",
        "--container",
        "agent",
        "--",
    )
    said = charts.run("kubectl", *inside, "pyvgpu", "doctor", "--node", "--json", *where)
    checks = {row["check"]: row for row in json.loads(said)["checks"]}
    assert {check["state"] for check in checks.values()} == {"ok"}, checks


def test_cluster_has_exactly_the_objects_that_helm_renders(release):
    own = charted.objects(charted.text(values=json.loads(release.read_text())))
    assert own == charted.objects(charts.helm("get", "manifest", charts.RELEASE))
    asked = ("diff", "--server-side", "--force-conflicts", "--filename", "-")
    charts.run("kubectl", *asked, text=charted.listed(own.values()))


def test_notes_write_kube_schedulers_configuration(release, folder):
    values = json.loads(release.read_text())
    values |= {"scheduler": {"mode": "patch"}, "kubeScheduler": {}}
    said = charts.notes(charts.write(folder / "patch.yaml", values))
    script = said[said.index("of() {") : said.index("pyvgpu doctor")]
    charts.run("sh", "-euc", f"cd {folder}\n{script}")
    config = yaml_file.read(folder / "kube-scheduler.yaml", "--config")
    assert config_check.check(config) == ()
    (extender,) = config["extenders"]
    assert extender["urlPrefix"] == "https://10.96.0.50/scheduler"  # found by itself
    _, kept, _ = secrets()
    tls = extender["tlsConfig"]
    assert [tls["caData"], tls["certData"], tls["keyData"]] == [
        kept[key] for key in ("ca.crt", "client.crt", "client.key")
    ]


def test_upgrade_and_rollback_disturb_no_running_pod(space, running, release, folder):
    kept = secrets()
    tag = charts.tag_images("another")
    values = json.loads(release.read_text())
    values |= {"image": tag, "fastExitImage": tag}
    values["agent"]["options"] = ["--packing=spread"]
    values["scheduler"]["replicas"] = 1
    charts.install(charts.write(folder / "upgrade.yaml", values), "upgrade")
    assert charts.images() == {"another"}
    undisturbed.check(space, running)
    undisturbed.has_devices()
    undisturbed.run_beside(space, "upgraded", 50, 8)
    charts.helm("rollback", charts.RELEASE, 1, "--wait")
    assert charts.images() == {charts.VERSION}
    undisturbed.check(space, running)
    undisturbed.has_devices()
    undisturbed.run_beside(space, "back", 50, 8)
    assert secrets() == kept


def test_profile_change_and_rollback_disturb_no_running_pod(space, running, release, folder):
    values = json.loads(release.read_text()) | {"profile": "gaia"}
    charts.install(charts.write(folder / "gaia.yaml", values), "upgrade")
    # Without the pod's share.
    undisturbed.has_devices(device_ids.GAIA, vcore=30, units=undisturbed.UNITS)
    undisturbed.check(space, running)
    theirs = container("a", 0, 0)
    theirs["resources"] = {"limits": {device_ids.GAIA[0].name: "50", device_ids.GAIA[1].name: "8"}}
    space.create("pods", rig.pod("theirs", theirs))
    said = agents.said(space.until("pods", "theirs", rig.has_ended), "a")
    assert (int(said["total"]), said["wrong"]) == (8 * UNIT, "0")
    charts.helm("rollback", charts.RELEASE, 1, "--wait")
    undisturbed.has_devices()
    undisturbed.check(space, running)
    undisturbed.run_beside(space, "ours", 50, 8)


ALL = audit_log.EVERYWHERE
# Permissions that the tests of this file do not need, and what does.
ELSEWHERE: dict[audit_log.Permission, str] = {
    ("agent", ALL, "events", "create"): "pods that wait: agent/test_grants.py",
    ("agent", ALL, "pods", "delete"): "pods that can never start: agent/test_grants.py",
    ("agent", ALL, "pods", "get"): "a pod that starts before its watch has delivered it",
    ("scheduler", ALL, "events", "create"): "pods that wait: scheduler/test_together.py",
    ("scheduler", ALL, "pods", "get"): "a binding that got no answer: scheduler/test_burst.py",
    ("scheduler", ALL, "pods/eviction", "create"): "preemption: scheduler/test_together.py",
    ("sidecar-controller", ALL, "events", "create"): "sidecar/test_jobs.py, and the next four",
    ("sidecar-controller", ALL, "jobs", "get"): "the number of restarts",
    ("sidecar-controller", ALL, "jobs", "patch"): "a higher backoffLimit",
    ("sidecar-controller", ALL, "pods", "patch"): "sidecars of completed pods",
    ("sidecar-node", ALL, "events", "list"): "a restart that kubelet has begun",
    ("sidecar-controller", "pyvgpu", "leases", "delete"): "nodes that are gone",
    ("status-page", ALL, "subjectaccessreviews", "create"): "viewers: scheduler/test_status.py",
    ("status-page", ALL, "tokenreviews", "create"): "the same",
    ("status-page", "pyvgpu", "configmaps pyvgpu-status-page", "patch"): "after five minutes",
}


def test_programs_need_all_their_permissions_and_no_other(release, running, audited):
    """By the API server's audit log."""
    granted = permissions.granted(charted.documents(values=json.loads(release.read_text())))
    every = audit_log.permissions(granted)
    asked = set(audit_log.requests(audited))
    assert not {request for request in asked if not request.allowed}
    assert {request.account for request in asked} >= granted.keys()
    assert audit_log.unused(every, asked) - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() <= every


def test_removal_leaves_only_running_pods(space, running, release, folder):
    charts.uninstall()
    assert charts.left() == []
    undisturbed.check(space, running)
    state = json.loads(release.read_text())["agent"]["state"]
    assert Path(state, "simulated").is_dir()  # running pods need it
    for step in documented.steps(REMOVED):
        documented.follow(step, folder, release)
    undisturbed.check(space, running)
    (node,) = json.loads(charts.run("kubectl", "get", "nodes", "--output=json"))["items"]
    noted = {**node["metadata"].get("annotations", {}), **node["metadata"]["labels"]}
    assert not [name for name in noted if name.startswith(("pyvgpu.io/", "gaia.tencent.com/"))]
    left = charts.things("leases,configmaps,secrets,serviceaccounts,pods")
    assert left == {"configmap/kube-root-ca.crt", "serviceaccount/default"}


def test_page_installs_and_removes_without_helm(space, running, folder):
    """Follow each cluster step of docs/start-cluster.md, with the rig's host paths."""
    values = charts.write(folder / "plain.yaml", charts.values())
    (pod,) = documented.objects(PAGE)
    name = pod["metadata"]["name"]
    ours = container("main", 1, 1)
    pod["spec"]["containers"][0].update(image=ours["image"], command=ours["command"])
    (folder / f"{name}.yaml").write_text(json.dumps(pod))
    said = {}
    for step in documented.steps(PAGE):
        said[step] = documented.follow(step, folder, values)
        if "rollout" in step:
            undisturbed.has_devices()
        if f"apply -f {name}.yaml" in step:
            phase = "jsonpath={.status.phase}=Succeeded"
            charts.run("kubectl", "wait", f"--for={phase}", f"pod/{name}", "--timeout=120s")
            ended = json.loads(charts.run("kubectl", "get", "pod", name, "--output", "json"))
            assert int(agents.said(ended, "main")["total"]) == 16 * UNIT
            undisturbed.check(space, running)
    assert f"{names.VCORE_RESOURCE}: 200" in " ".join("".join(said.values()).split())
    charts.pods_are_gone()
    assert charts.left() == []
