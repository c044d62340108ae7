"""The chart from its installation to its end, with the real helm."""

import json
from pathlib import Path

import agents
import charted
import charts
import documented
import pytest
import rig
from agents import NODE, UNIT, container
from waiting import wait_until

from pyvgpu import names, simulator
from pyvgpu.controller import yamlfile
from pyvgpu.controller.scheduler import configured
from pyvgpu.deviceplugin import ids

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

PAGE = "start-cluster.md"
REMOVED = "install.md"
UNITS = 16  # of memory that the pod has that runs all the while
HELD = 1 << 30  # of it by a process that stays
STAYS = "trap 'exit 0' TERM; /stays & while true; do sleep 0.1; done"
WHO = "for it in /proc/[0-9]*; do read -r stat < $it/stat && echo $stat; done"


@pytest.fixture(scope="module")
def space(release):
    with rig.space() as made:
        yield made


@pytest.fixture(scope="module")
def running(space):
    """Return a pod with a share of a device that runs all the while, and what runs in it."""
    has_devices()
    space.create(
        "pods", rig.pod("stays", container("a", 30, UNITS, STAYS), restartPolicy="Always")
    )
    pod = space.until("pods", "stays", lambda it: rig.runs(it, "a"))
    wait_until(lambda: "[0, " in agents.logs(space, "stays", "a"))
    return pod, processes(space)


def inside(space, *command):
    """Return what a command says in the container that runs all the while."""
    asked = ("exec", "--namespace", space.name, "stays", "--container", "a", "--", *command)
    return charts.run("kubectl", *asked)


def processes(space):
    """Return the names, pids and beginnings of the processes that stay."""
    rows = [line.split() for line in inside(space, "sh", "-c", WHO).splitlines()]
    return {(row[1], row[0], row[21]) for row in rows if row[1] == "(stays)" or row[0] == "1"}


def has_devices(resources=ids.OURS, vcore=0, units=0):
    """Wait until the node has all that two simulated devices are, but for that much of them."""
    memory = sum(it.memory_bytes // UNIT for it in simulator.parse_machine("h100:2"))
    counts = (str(200 - vcore), str(memory - units))
    wanted = dict(zip((it.name for it in resources), counts, strict=True))
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


def is_untouched(space, running):
    """See that the pod's processes are those of before, and yet held to their share."""
    before, known = running
    now = space.read("pods", before["metadata"]["name"])
    assert now["metadata"]["uid"] == before["metadata"]["uid"]
    found, first = rig.state(now, "a"), rig.state(before, "a")
    assert (found["containerID"], found["restartCount"]) == (first["containerID"], 0)
    assert rig.runs(now, "a")
    assert processes(space) == known
    assert len(known) == 2
    said = dict(line.split(" ", 1) for line in inside(space, "/client").splitlines())
    assert (int(said["total"]), said["wrong"]) == (UNITS * UNIT, "0")
    assert 0 < int(said["taken"]) < UNITS * UNIT - HELD
    assert said["refused"] != "0"


def sees(space, name, vcore, units):
    """Run a pod that takes all that it can have; see that it had no more than its share."""
    space.create("pods", rig.pod(name, container("a", vcore, units)))
    ended = space.until("pods", name, rig.has_ended)
    said = agents.said(ended, "a")
    assert (int(said["total"]), said["wrong"]) == (units * UNIT, "0"), ended["status"]
    assert said["refused"] != "0"
    return ended


def test_a_share_is_chosen_by_the_second_scheduler_and_held(space, running):
    pod, _ = running
    assert pod["spec"]["schedulerName"] == "pyvgpu"
    chosen = pod["metadata"]["annotations"][names.DEVICES_ANNOTATION]
    other = sees(space, "other", 80, 16)
    assert other["metadata"]["annotations"][names.DEVICES_ANNOTATION] != chosen
    usual = rig.pod("usual", rig.container("a", "true"))
    space.create("pods", usual)
    ended = space.until("pods", "usual", rig.has_ended)
    assert (rig.phase(ended), ended["spec"]["schedulerName"]) == ("Succeeded", "default-scheduler")


def test_agents_wait_for_the_key_and_do_not_end(release):
    """The Secret is empty until the scheduler leads for the first time."""
    command = ("kubectl", "get", "pods", "--namespace", charts.AGENTS, "--output=json")
    pods = json.loads(charts.run(*command))["items"]
    restarts = {
        (it["metadata"]["name"], one["name"]): one["restartCount"]
        for it in pods
        for one in it["status"]["containerStatuses"]
    }
    assert restarts
    assert not any(restarts.values()), restarts


def test_people_see_what_is_held_and_that_the_agent_is_well(space, running, release):
    def told():
        said = charts.run("kubectl", "vgpu", "top", "--namespace", space.name, "-o", "json")
        (part,) = json.loads(said)["parts"]
        assert (part["pod"], part["container"], part["vcore"]) == ("stays", "a", 30)
        assert part["vmemoryBytes"] == UNITS * UNIT
        return HELD < part["heldBytes"] < UNITS * UNIT  # by the agent's word

    wait_until(told)
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


def test_what_is_in_the_cluster_is_what_helm_renders_without_it(release):
    own = charted.objects(charted.text(values=json.loads(release.read_text())))
    assert own == charted.objects(charts.helm("get", "manifest", charts.RELEASE))
    asked = ("diff", "--server-side", "--force-conflicts", "--filename", "-")
    charts.run("kubectl", *asked, text=charted.listed(own.values()))


def test_the_notes_write_the_file_that_kube_scheduler_is_told_by(release, folder):
    values = json.loads(release.read_text())
    values |= {"scheduler": {"mode": "patch"}, "kubeScheduler": {}}
    said = charts.notes(charts.write(folder / "patch.yaml", values))
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
    tag = charts.tag_images("another")
    values = json.loads(release.read_text())
    values |= {"image": tag, "fastExitImage": tag}
    values["agent"]["options"] = ["--packing=spread"]
    values["scheduler"]["replicas"] = 1
    charts.install(charts.write(folder / "upgrade.yaml", values), "upgrade")
    assert charts.images() == {"another"}
    is_untouched(space, running)
    has_devices()
    sees(space, "upgraded", 50, 8)
    charts.helm("rollback", charts.RELEASE, 1, "--wait")
    assert charts.images() == {charts.VERSION}
    is_untouched(space, running)
    has_devices()
    sees(space, "back", 50, 8)
    assert secrets() == kept


def test_another_profile_and_the_way_back_touch_no_pod_that_runs(space, running, release, folder):
    values = json.loads(release.read_text()) | {"profile": "gaia"}
    charts.install(charts.write(folder / "gaia.yaml", values), "upgrade")
    has_devices(ids.GAIA, vcore=30, units=UNITS)  # the pod's part is not given out again
    is_untouched(space, running)
    theirs = container("a", 0, 0)
    theirs["resources"] = {"limits": {ids.GAIA[0].name: "50", ids.GAIA[1].name: "8"}}
    space.create("pods", rig.pod("theirs", theirs))
    said = agents.said(space.until("pods", "theirs", rig.has_ended), "a")
    assert (int(said["total"]), said["wrong"]) == (8 * UNIT, "0")
    charts.helm("rollback", charts.RELEASE, 1, "--wait")
    has_devices()
    is_untouched(space, running)
    sees(space, "ours", 50, 8)


def test_removed_it_leaves_the_pods_that_run_and_nothing_else(space, running, release, folder):
    charts.uninstall()
    assert charts.left() == []
    is_untouched(space, running)
    state = json.loads(release.read_text())["agent"]["state"]
    assert Path(state, "simulated").is_dir()  # which the pods that run need
    for step in documented.steps(REMOVED):
        documented.follow(step, folder, release)
    is_untouched(space, running)
    (node,) = json.loads(charts.run("kubectl", "get", "nodes", "--output=json"))["items"]
    noted = {**node["metadata"].get("annotations", {}), **node["metadata"]["labels"]}
    assert not [it for it in noted if it.startswith(("pyvgpu.io/", "gaia.tencent.com/"))]
    left = charts.things("leases,configmaps,secrets,serviceaccounts,pods")
    assert left == {"configmap/kube-root-ca.crt", "serviceaccount/default"}


def test_without_helm_it_comes_and_goes_as_the_page_says(space, running, folder):
    """Each step of docs/start-cluster.md for a cluster, on the rig's own folders."""
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
