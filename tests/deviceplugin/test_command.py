"""`pyvgpu device-plugin` as a program, with a kubelet and the simulated driver, and killed."""

import datetime
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_kubelet
import pytest
import simulated_node
import waiting
from fake_kubelet import SECONDS, VCORE, VMEMORY, AdmissionError, StartError, container, pod
from node_process import PROGRAM, UNIT, ended

from pyvgpu.deviceplugin.containers import grant_pool
from pyvgpu.deviceplugin.telemetry import status_history
from pyvgpu.simulation import simulator
from pyvgpu.status import history
from pyvgpu.volumes import atomic_files

pytestmark = pytest.mark.slow


def test_agent_imports_no_heavy_library():
    program = (
        "import sys; from pyvgpu.deviceplugin import agent; "
        "from pyvgpu.deviceplugin.plugin import device_nodes; "
        "print({'kubernetes', 'numpy', 'cryptography'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout == b"set()\n"


def test_grants_survive_a_killed_agent(node):
    kubelet, uuids = node.kubelet, [device.uuid for device in node.machine.devices]
    killed = node.start()
    kubelet.until_offered()
    assert len(kubelet.healthy(VCORE)) == 200
    units = node.machine.devices[0].memory_bytes // UNIT
    assert len(kubelet.healthy(VMEMORY)) == 2 * units
    two = kubelet.admit(pod("p", container("a", 30, 8), container("b", 60, 16)))
    whole = kubelet.admit(pod("q", container("a", 100, 0)))
    answers = [kubelet.start_container(two, name) for name in ("a", "b")]
    assert [node.quota(answer) for answer in answers] == [(30, 8, uuids[0]), (60, 16, uuids[0])]
    edits = node.specification(kubelet.start_container(whole, "a"))
    assert [device_node["path"] for device_node in edits["deviceNodes"]] == [
        "/dev/nvidia-uvm",
        "/dev/nvidiactl",
        "/dev/nvidia1",
    ]
    assert ended(killed, signal.SIGKILL) == -signal.SIGKILL
    node.start()
    kubelet.until_offered()
    assert kubelet.start_container(two, "a") == answers[0]
    assert node.quota(answers[0]) == (30, 8, uuids[0])
    for each in (two, whole):
        kubelet.remove(each)
    node.until(lambda: not list(node.specifications.iterdir()))
    node.until(
        lambda: not [path for path in (node.files / "grants").iterdir() if len(path.name) == 16]
    )


def test_first_start_uses_a_pooled_folder(node):
    node.start()
    node.kubelet.until_offered()
    assert len(atomic_files.found(node.files / "grants")) == grant_pool.SIZE


@pytest.mark.parametrize(
    ("state", "run", "words"),
    [
        pytest.param("state", "run", "another agent of this node has it", id="same state"),
        pytest.param("other", "run", "another agent uses this folder", id="same files"),
        pytest.param("other", "more", "another agent serves this kubelet", id="same kubelet"),
    ],
)
def test_second_agent_on_a_node_is_refused(node, state, run, words):
    node.start()
    node.kubelet.until_offered()
    second = node.start("--state", node.folder / state, "--run", node.folder / run)
    assert second.wait(SECONDS) == 69
    assert words in node.log.read_text()
    assert node.kubelet.healthy(VCORE)


def test_without_cdi_the_quota_appears_when_the_grant_is_bound(node):
    kubelet = node.kubelet
    node.start("--no-require-cdi")
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("a", 30, 8)))
    _, answer = kubelet.held[one.uid, "a", VCORE]
    mounts = {mount.inside: mount for mount in fake_kubelet.read_answer(answer).mounts}
    folder = Path(mounts["/etc/pyvgpu"].outside)
    assert mounts["/etc/pyvgpu"].read_only
    assert not mounts["/run/pyvgpu/usage"].read_only
    assert not (folder / "quota").exists()
    started = kubelet.start_container(one, "a")
    assert not started.cdi_devices
    assert fake_kubelet.read_answer(answer).variables["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert (folder / "quota").exists()
    assert {inside for inside, _ in started.nodes} == {
        f"/dev/{name}" for name in simulated_node.nodes(2)
    }
    assert all(Path(outside).exists() for _, outside in started.nodes)
    with pytest.raises(AdmissionError, match="whole devices need CDI"):
        kubelet.admit(pod("q", container("a", 100, 0)))


def test_without_cdi_device_nodes_have_the_nodes_paths(node):
    kubelet = node.kubelet
    node.start("--no-require-cdi", "--node-dev", "/nodes")
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("a", 30, 8)))
    found = dict(kubelet.start_container(one, "a").nodes)
    assert found == {f"/dev/{name}": f"/nodes/{name}" for name in simulated_node.nodes(2)}


def test_unhealthy_device_is_not_offered_until_it_recovers(node):
    kubelet = node.kubelet
    node.start("--recover-seconds", "1")
    kubelet.until_offered()
    simulator.set_faults(node.machine, "lost 1")
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 100)
    simulator.set_faults(node.machine)
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 200)


def test_devices_are_offered_once_there_is_a_driver(node):
    libraries = node.root / "usr"
    libraries.rename(node.folder / "usr")
    node.start()
    kubelet = node.kubelet
    kubelet.until(lambda: VCORE in kubelet.devices and VMEMORY in kubelet.devices)
    assert not kubelet.healthy(VCORE)
    (node.folder / "usr").rename(libraries)
    kubelet.until_offered()


def test_grants_survive_a_damaged_checkpoint(node):
    kubelet = node.kubelet
    first = node.start()
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("a", 60, 8)))
    answer = kubelet.start_container(one, "a")
    late = kubelet.admit(pod("late", container("a", 30, 4)))
    quota = node.quota(answer)
    ended(first)
    (node.state / "checkpoint").write_bytes(b"garbage")
    node.start()
    kubelet.until_offered()
    other = kubelet.admit(pod("q", container("a", 60, 8)))
    there = node.quota(kubelet.start_container(other, "a"))
    assert there[2] != quota[2]  # both do not fit on one device
    assert kubelet.start_container(one, "a") == answer
    assert node.quota(answer) == quota
    assert node.quota(kubelet.start_container(late, "a"))[:2] == (30, 4)


def test_container_gets_the_same_grant_after_a_reboot(node):
    kubelet = node.kubelet
    agent = node.start()
    kubelet.until_offered()
    one, other = (kubelet.admit(pod(name, container("a", 30, 8))) for name in "pq")
    answer = kubelet.start_container(one, "a")
    before = node.quota(answer)
    ended(agent, signal.SIGKILL)
    kubelet.stop()
    for folder in (node.files, node.specifications):  # they are in memory
        waiting.until_removed(folder)
    kubelet.start()
    node.start()
    kubelet.until_offered()
    assert kubelet.start_container(one, "a") == answer
    assert node.quota(answer) == before
    assert node.quota(kubelet.start_container(other, "a"))[:2] == (30, 8)


def test_full_disk_refuses_and_the_agent_runs_on(node):
    """A grant that cannot be stored is refused."""
    kubelet = node.kubelet
    node.start()
    kubelet.until_offered()
    grants = node.files / "grants"
    node.until(grants.is_dir)
    one = kubelet.admit(pod("p", container("a", 30, 4)))
    grants.chmod(0o1500)
    grants.rename(node.state / "away")
    grants.write_text("in the way")
    with pytest.raises(StartError, match="the files of the grant cannot be changed"):
        kubelet.start_container(one, "a")
    grants.unlink()
    (node.state / "away").rename(grants)
    assert node.quota(kubelet.start_container(one, "a"))[:2] == (30, 4)


def ordered(node, *words):
    """Run a command for the agent of this node; return its exit code and its output."""
    done = subprocess.run(
        [PROGRAM, *words, "--state", node.state],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def test_quota_can_be_changed_up_to_the_request(node):
    kubelet = node.kubelet
    agent = node.start()
    kubelet.until_offered()
    answer = kubelet.start_container(kubelet.admit(pod("p", container("a", 50, 8))), "a")
    uuid = node.quota(answer)[2]
    assert ordered(node, "set", "default/p", "--vcore", "20", "--vmemory", "1GiB") == (
        0,
        f"default/p/a: vcore 20, vmemory 1GiB of {uuid}",
    )
    assert node.quota(answer) == (20, 4, uuid)
    code, said = ordered(node, "set", "default/p/a", "--vcore", "60")
    assert code == 64
    assert "was created with 50, and the rest is reserved for others" in said
    assert node.quota(answer) == (20, 4, uuid)
    ended(agent, signal.SIGKILL)
    assert ordered(node, "set", "default/p/a", "--vcore", "30")[0] == 69
    node.start()
    kubelet.until_offered()
    node.until(lambda: ordered(node, "set", "default/p/a", "--vcore", "50")[0] == 0)
    assert node.quota(answer) == (50, 4, uuid)


def test_cordoned_device_gets_no_new_containers(node):
    kubelet, uuids = node.kubelet, [device.uuid for device in node.machine.devices]
    agent = node.start()
    kubelet.until_offered()
    one = kubelet.start_container(kubelet.admit(pod("p", container("a", 30, 8))), "a")
    assert node.quota(one)[2] == uuids[0]
    assert ordered(node, "cordon", uuids[0]) == (
        0,
        f"{uuids[0]}: cordoned, no new container gets it",
    )
    node.until(lambda: len(kubelet.healthy(VCORE)) == 130)
    two = kubelet.start_container(kubelet.admit(pod("q", container("a", 30, 8))), "a")
    assert node.quota(two)[2] == uuids[1]
    ended(agent, signal.SIGKILL)
    node.start()
    kubelet.until_offered()
    node.until(lambda: len(kubelet.healthy(VCORE)) == 130)
    assert ordered(node, "cordon", uuids[0], "--undo") == (
        0,
        f"{uuids[0]}: uncordoned, new containers can get it",
    )
    node.until(lambda: len(kubelet.healthy(VCORE)) == 200)
    assert ordered(node, "cordon", "GPU-x")[0] == 64


def test_metrics_show_a_grant_until_it_ends(node):
    node.start("--listen", "127.0.0.1:0")
    kubelet = node.kubelet
    node.until(lambda: node.ask("/readyz") == (200, "ok\n"))
    kubelet.until_offered()
    assert node.ask("/healthz") == (200, "ok\n")
    one = kubelet.admit(pod("p", container("a", 30, 8)))
    kubelet.start_container(one, "a")
    uuid = node.machine.devices[0].uuid
    labels = f'{{namespace="default",pod="p",container="a",uuid="{uuid}"}}'
    status, text = node.ask("/metrics")
    assert status == 200
    assert f"pyvgpu_container_vcore_allocated_ratio{labels} 0.3\n" in text
    assert f"pyvgpu_container_memory_allocated_bytes{labels} 2147483648.0\n" in text
    assert f"pyvgpu_container_busy_seconds_total{labels} 0.0\n" in text
    assert "pyvgpu_cdi_required 1.0\n" in text
    assert 'pyvgpu_kubelet_call_seconds_count{call="allocate",result="done"} 2.0\n' in text
    assert node.ask("/status")[1].startswith("<!doctype html>")
    shown = json.loads(node.ask("/status.json")[1])
    (seen,) = shown["devices"][0]["containers"]
    assert (shown["kind"], shown["devices"][0]["uuid"]) == ("node", uuid)
    assert (seen["pod"], seen["allocated"], seen["allocatedBytes"]) == ("p", 0.3, 2 << 30)
    kubelet.remove(one)
    node.until(lambda: labels not in node.ask("/metrics")[1])


def test_day_of_the_status_page_continues_after_a_kill(node):
    uuid = node.machine.devices[0].uuid
    step = int(time.time() // history.STEP_SECONDS)
    day = {"step": step - 1, "values": [[11, 22], [33, 44]]}
    stored = {"seconds": history.STEP_SECONDS, "days": {uuid: day}}

    def shown():
        (found, *_) = json.loads(node.ask("/status.json")[1])["devices"]
        return found["uuid"] == uuid and found["day"]["memoryMiB"]

    node.state.mkdir()
    (node.state / status_history.FILE).write_text(json.dumps(stored))
    killed = node.start("--listen", "127.0.0.1:0")
    node.until(lambda: node.ask("/readyz") == (200, "ok\n"))
    node.until(lambda: shown()[:2] == [33, 44] and len(shown()) > 2)
    ended(killed, signal.SIGKILL)
    node.start("--listen", "127.0.0.1:0")
    node.until(lambda: node.log.read_text().count("answering on port") == 2)
    node.until(lambda: node.ask("/readyz") == (200, "ok\n"))
    node.until(lambda: shown()[:2] == [33, 44] and len(shown()) > 2)


def test_json_log_is_machine_readable(node):
    node.start("--listen", "127.0.0.1:0", "--log-format", "json")
    node.until(lambda: "answering on port" in node.log.read_text())
    node.kubelet.until_offered()
    entries = [json.loads(line) for line in node.log.read_text().splitlines()]
    (said,) = [entry for entry in entries if entry["message"].startswith("answering on port")]
    assert (said["level"], said["logger"]) == ("info", "pyvgpu.deviceplugin.agent_http")
    assert datetime.datetime.fromisoformat(said["time"]).tzinfo
