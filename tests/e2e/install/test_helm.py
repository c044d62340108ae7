"""The chart from its installation to its end, with the real helm."""

import json
from pathlib import Path

import agents
import charts
import documented
import pytest
import rig
from agents import NODE, UNIT, container

from pyvgpu import names, simulator
from pyvgpu.controller import yamlfile
from pyvgpu.controller.scheduler import configured

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

PAGE = "start-cluster.md"
STAYS = "trap 'exit 0' TERM; while true; do sleep 0.1; done"


@pytest.fixture(scope="module")
def space(release):
    with rig.space() as made:
        yield made


@pytest.fixture(scope="module")
def running(space):
    """Return a pod with a share of a device that runs all the while."""
    has_devices()
    space.create("pods", rig.pod("stays", container("a", 30, 8, STAYS), restartPolicy="Always"))
    return space.until("pods", "stays", lambda it: rig.runs(it, "a"))


def has_devices():
    """Wait until the node has all that two simulated devices are, and nobody else's."""
    units = sum(it.memory_bytes // UNIT for it in simulator.parse_machine("h100:2"))
    wanted = {names.VCORE_RESOURCE: "200", names.VMEMORY_RESOURCE: str(units)}
    rig.until_node(NODE, lambda it: wanted.items() <= it["status"]["allocatable"].items())


def secrets():
    """Return what the programs have made themselves."""
    kept = (
        ("secret/pyvgpu-webhook", charts.NAMESPACE),
        ("secret/pyvgpu-scheduler", charts.NAMESPACE),
        ("secret/pyvgpu-placement", charts.AGENTS),
    )
    found = [charts.run("kubectl", "get", it, "-n", where, "-o", "json") for it, where in kept]
    return [json.loads(it)["data"] for it in found]


def is_untouched(space, before):
    now = space.read("pods", before["metadata"]["name"])
    assert now["metadata"]["uid"] == before["metadata"]["uid"]
    found, known = rig.state(now, "a"), rig.state(before, "a")
    assert (found["containerID"], found["restartCount"]) == (known["containerID"], 0)
    assert rig.runs(now, "a")


def sees(space, name, vcore, units):
    """Run a pod that takes all that it can have; see that it had no more than its share."""
    space.create("pods", rig.pod(name, container("a", vcore, units)))
    ended = space.until("pods", name, rig.has_ended)
    said = agents.said(ended, "a")
    assert (int(said["total"]), said["wrong"]) == (units * UNIT, "0"), ended["status"]
    assert said["refused"] != "0"
    return ended


def test_a_share_is_chosen_by_the_second_scheduler_and_held(space, running):
    assert running["spec"]["schedulerName"] == "pyvgpu"
    chosen = running["metadata"]["annotations"][names.DEVICES_ANNOTATION]
    other = sees(space, "other", 80, 16)
    assert other["metadata"]["annotations"][names.DEVICES_ANNOTATION] != chosen
    usual = rig.pod("usual", rig.container("a", "true"))
    space.create("pods", usual)
    ended = space.until("pods", "usual", rig.has_ended)
    assert (rig.phase(ended), ended["spec"]["schedulerName"]) == ("Succeeded", "default-scheduler")


def test_people_see_what_is_held_and_that_the_agent_is_well(space, running, release):
    told = charts.run("kubectl", "vgpu", "top", "--namespace", space.name, "-o", "json")
    (part,) = json.loads(told)["parts"]
    assert (part["pod"], part["container"], part["vcore"]) == ("stays", "a", 30)
    assert (part["vmemoryBytes"], part["heldBytes"]) == (8 * UNIT, 0)  # by the agent's word
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
    assert {it["state"] for it in checks.values()} == {"ok"}, checks


def test_manifests_are_what_helm_has_made(release):
    own = charts.objects(charts.manifests(release))
    own.pop(("Namespace", "", charts.NAMESPACE))
    assert own == charts.objects(charts.helm("get", "manifest", charts.RELEASE))
    asked = ("diff", "--server-side", "--force-conflicts", "--filename", "-")
    charts.run("kubectl", *asked, text=json.dumps(charts.listed(own.values())))


def test_the_notes_write_the_file_that_kube_scheduler_is_told_by(release, folder):
    values = json.loads(release.read_text())
    values |= {"scheduler": {"mode": "patch"}, "kubeScheduler": {}}
    said = charts.notes(charts.write(folder / "patch.yaml", values))
    assert said.strip() == charts.CHART.notes(values, charts.NAMESPACE).strip()
    script = said[said.index("of() {") : said.index("pyvgpu doctor")]
    charts.run("sh", "-euc", f"cd {folder}\n{script}")
    config = yamlfile.read(folder / "kube-scheduler.yaml", "--config")
    assert configured.judge(config) == ()
    (extender,) = config["extenders"]
    assert extender["urlPrefix"] == "https://10.96.0.50/scheduler"  # which nobody has told it
    _, kept, _ = secrets()
    tls = extender["tlsConfig"]
    assert [tls["caData"], tls["certData"], tls["keyData"]] == [
        kept[it] for it in ("ca.crt", "client.crt", "client.key")
    ]


def test_an_upgrade_and_the_way_back_touch_no_pod_that_runs(space, running, release, folder):
    kept = secrets()
    values = json.loads(release.read_text())
    values["agent"]["options"] = ["--packing=spread"]
    values["scheduler"]["replicas"] = 1
    charts.install(charts.write(folder / "upgrade.yaml", values), "upgrade")
    is_untouched(space, running)
    has_devices()
    sees(space, "upgraded", 50, 8)
    charts.helm("rollback", charts.RELEASE, 1, "--wait")
    is_untouched(space, running)
    has_devices()
    sees(space, "back", 50, 8)
    assert secrets() == kept


def test_removed_it_leaves_the_pods_that_run_and_nothing_else(space, running, release):
    charts.uninstall()
    assert charts.left() == []
    is_untouched(space, running)
    state = json.loads(release.read_text())["agent"]["state"]
    assert Path(state, "simulated").is_dir()  # as the notes say


def test_without_helm_it_comes_and_goes_as_the_page_says(space, running, folder):
    """Each step of docs/start-cluster.md for a cluster, on the rig's own folders."""
    wanted = charts.values(webhook={"enabled": False}, sidecar={"enabled": False})
    values = charts.write(folder / "plain.yaml", wanted)
    (pod,) = documented.objects(PAGE)
    name = pod["metadata"]["name"]
    ours = container("main", 1, 1)
    pod["spec"]["containers"][0].update(image=ours["image"], command=ours["command"])
    (folder / f"{name}.yaml").write_text(json.dumps(pod))
    said = {}
    for step in documented.steps(PAGE):
        said[step] = documented.follow(step, folder, values)
        if "rollout" in step:
            has_devices()
        if f"apply -f {name}.yaml" in step:
            phase = "jsonpath={.status.phase}=Succeeded"
            charts.run("kubectl", "wait", f"--for={phase}", f"pod/{name}", "--timeout=120s")
            ended = json.loads(charts.run("kubectl", "get", "pod", name, "--output", "json"))
            assert int(agents.said(ended, "main")["total"]) == 16 * UNIT
            is_untouched(space, running)
    assert f"{names.VCORE_RESOURCE}: 200" in " ".join("".join(said.values()).split())
    charts.pods_are_gone()
    assert charts.left() == []
