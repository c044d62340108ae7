"""`pyvgpu device-plugin` as a program: with a kubelet, the simulated driver, and its death."""

import datetime
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fake_kubelet
import pytest
import simulated_node
from fake_kubelet import SECONDS, VCORE, VMEMORY, AdmissionError, StartError, container, pod
from node_process import PROGRAM, UNIT, ended

from pyvgpu import simulator
from pyvgpu.deviceplugin import stock
from pyvgpu.volumes import drafts


def test_the_agent_needs_no_library_that_would_cost_the_node_more_than_itself():
    program = (
        "import sys; from pyvgpu.deviceplugin import agent, control; "
        "print({'kubernetes', 'numpy', 'cryptography'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout == b"set()\n"


def test_a_pod_gets_what_it_asked_for_and_the_agent_can_be_killed(node):
    kubelet, uuids = node.kubelet, [it.uuid for it in node.machine.devices]
    killed = node.start()
    kubelet.until_offered()
    assert len(kubelet.healthy(VCORE)) == 200
    units = node.machine.devices[0].memory_bytes // UNIT
    assert len(kubelet.healthy(VMEMORY)) == 2 * units
    two = kubelet.admit(pod("p", container("a", 30, 8), container("b", 60, 16)))
    whole = kubelet.admit(pod("q", container("a", 100, 0)))
    answers = [kubelet.start_container(two, name) for name in ("a", "b")]
    assert [node.quota(it) for it in answers] == [(30, 8, uuids[0]), (60, 16, uuids[0])]
    edits = node.specification(kubelet.start_container(whole, "a"))
    assert [it["path"] for it in edits["deviceNodes"]] == [
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
    node.until(lambda: not [it for it in (node.files / "grants").iterdir() if len(it.name) == 16])


def test_who_starts_first_finds_folders_ready(node):
    node.start()
    node.kubelet.until_offered()
    assert len(drafts.found(node.files / "grants")) == stock.SIZE


@pytest.mark.parametrize(
    ("state", "run", "words"),
    [
        pytest.param("state", "run", "another agent of this node has it", id="same state"),
        pytest.param("other", "run", "another agent has its grants there", id="same files"),
        pytest.param("other", "more", "another one serves this kubelet", id="same kubelet"),
    ],
)
def test_a_second_agent_is_refused(node, state, run, words):
    node.start()
    node.kubelet.until_offered()
    second = node.start("--state", node.folder / state, "--run", node.folder / run)
    assert second.wait(SECONDS) == 69
    assert words in node.log.read_text()
    assert node.kubelet.healthy(VCORE)


def test_without_cdi_a_container_has_its_own_quota_and_none_before_it_is_bound(node):
    kubelet = node.kubelet
    node.start("--no-require-cdi")
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("a", 30, 8)))
    _, answer = kubelet.held[one.uid, "a", VCORE]
    mounts = {it.inside: it for it in fake_kubelet.read_answer(answer).mounts}
    folder = Path(mounts["/etc/pyvgpu"].outside)
    assert mounts["/etc/pyvgpu"].read_only
    assert not mounts["/run/pyvgpu/usage"].read_only
    assert not (folder / "quota").exists()
    started = kubelet.start_container(one, "a")
    assert not started.cdi_devices
    assert (folder / "quota").exists()
    assert {inside for inside, _ in started.nodes} == {
        f"/dev/{it}" for it in simulated_node.nodes(2)
    }
    assert all(Path(outside).exists() for _, outside in started.nodes)
    with pytest.raises(AdmissionError, match="whole devices need CDI"):
        kubelet.admit(pod("q", container("a", 100, 0)))


def test_without_cdi_nodes_are_named_as_the_node_itself_has_them(node):
    kubelet = node.kubelet
    node.start("--no-require-cdi", "--node-dev", "/nodes")
    kubelet.until_offered()
    one = kubelet.admit(pod("p", container("a", 30, 8)))
    found = dict(kubelet.start_container(one, "a").nodes)
    assert found == {f"/dev/{it}": f"/nodes/{it}" for it in simulated_node.nodes(2)}


def test_a_sick_device_is_not_offered_until_it_is_well(node):
    kubelet = node.kubelet
    node.start("--recover-seconds", "1")
    kubelet.until_offered()
    simulator.set_faults(node.machine, "lost 1")
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 100)
    simulator.set_faults(node.machine)
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 200)


def test_without_a_driver_nothing_is_offered_and_with_one_it_is(node):
    libraries = node.root / "usr"
    libraries.rename(node.folder / "usr")
    node.start()
    kubelet = node.kubelet
    kubelet.until(lambda: VCORE in kubelet.devices and VMEMORY in kubelet.devices)
    assert not kubelet.healthy(VCORE)
    (node.folder / "usr").rename(libraries)
    kubelet.until_offered()


def test_a_damaged_checkpoint_costs_nobody_what_he_has(node):
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
    assert there[2] != quota[2]  # there is not room for both on one device
    assert kubelet.start_container(one, "a") == answer
    assert node.quota(answer) == quota
    assert node.quota(kubelet.start_container(late, "a"))[:2] == (30, 4)


def test_after_a_reboot_a_container_starts_on_what_it_had(node):
    kubelet = node.kubelet
    agent = node.start()
    kubelet.until_offered()
    one, other = (kubelet.admit(pod(name, container("a", 30, 8))) for name in "pq")
    answer = kubelet.start_container(one, "a")
    before = node.quota(answer)
    ended(agent, signal.SIGKILL)
    kubelet.stop()
    for folder in (node.files, node.specifications):  # they are in memory
        shutil.rmtree(folder)
    kubelet.start()
    node.start()
    kubelet.until_offered()
    assert kubelet.start_container(one, "a") == answer
    assert node.quota(answer) == before
    assert node.quota(kubelet.start_container(other, "a"))[:2] == (30, 8)


def test_a_full_disk_refuses_and_goes_on(node):
    """What cannot be remembered is not granted."""
    kubelet = node.kubelet
    node.start()
    kubelet.until_offered()
    grants = node.files / "grants"
    node.until(grants.is_dir)
    one = kubelet.admit(pod("p", container("a", 30, 4)))
    grants.chmod(0o1500)
    grants.rename(node.state / "away")
    grants.write_text("in the way")
    with pytest.raises(StartError, match="the grant cannot be made real"):
        kubelet.start_container(one, "a")
    grants.unlink()
    (node.state / "away").rename(grants)
    assert node.quota(kubelet.start_container(one, "a"))[:2] == (30, 4)


def told(node, *words):
    """Run a command for the agent of this node; return its exit code and what it said."""
    done = subprocess.run(
        [PROGRAM, *words, "--state", node.state],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def test_the_quota_of_a_container_can_be_changed_within_what_it_asked_for(node):
    kubelet = node.kubelet
    agent = node.start()
    kubelet.until_offered()
    answer = kubelet.start_container(kubelet.admit(pod("p", container("a", 50, 8))), "a")
    uuid = node.quota(answer)[2]
    assert told(node, "set", "default/p", "--vcore", "20", "--vmemory", "1GiB") == (
        0,
        f"default/p/a: vcore 20, vmemory 1GiB of {uuid}",
    )
    assert node.quota(answer) == (20, 4, uuid)
    code, said = told(node, "set", "default/p/a", "--vcore", "60")
    assert code == 64
    assert "was created with 50, and the rest is promised to others" in said
    assert node.quota(answer) == (20, 4, uuid)
    ended(agent, signal.SIGKILL)
    assert told(node, "set", "default/p/a", "--vcore", "30")[0] == 69
    node.start()
    kubelet.until_offered()
    node.until(lambda: told(node, "set", "default/p/a", "--vcore", "50")[0] == 0)
    assert node.quota(answer) == (50, 4, uuid)


def test_a_device_that_is_cordoned_gets_nothing_new_until_that_is_undone(node):
    kubelet, uuids = node.kubelet, [it.uuid for it in node.machine.devices]
    agent = node.start()
    kubelet.until_offered()
    one = kubelet.start_container(kubelet.admit(pod("p", container("a", 30, 8))), "a")
    assert node.quota(one)[2] == uuids[0]
    assert told(node, "cordon", uuids[0]) == (0, f"{uuids[0]}: gets nothing new")
    node.until(lambda: len(kubelet.healthy(VCORE)) == 130)
    two = kubelet.start_container(kubelet.admit(pod("q", container("a", 30, 8))), "a")
    assert node.quota(two)[2] == uuids[1]
    ended(agent, signal.SIGKILL)
    node.start()
    kubelet.until_offered()
    node.until(lambda: len(kubelet.healthy(VCORE)) == 130)
    assert told(node, "cordon", uuids[0], "--undo") == (0, f"{uuids[0]}: is given out again")
    node.until(lambda: len(kubelet.healthy(VCORE)) == 200)
    assert told(node, "cordon", "GPU-x")[0] == 64


def test_what_is_granted_is_seen_from_outside_until_it_is_over(node):
    node.start("--listen", "127.0.0.1:0")
    kubelet = node.kubelet
    node.until(lambda: node.ask("/readyz") == (200, "ok\n"))
    kubelet.until_offered()
    assert node.ask("/healthz") == (200, "ok\n")
    one = kubelet.admit(pod("p", container("a", 30, 8)))
    kubelet.start_container(one, "a")
    uuid = node.machine.devices[0].uuid
    who = f'{{namespace="default",pod="p",container="a",uuid="{uuid}"}}'
    status, text = node.ask("/metrics")
    assert status == 200
    assert f"pyvgpu_container_vcore_promised_ratio{who} 0.3\n" in text
    assert f"pyvgpu_container_memory_promised_bytes{who} 2147483648.0\n" in text
    assert f"pyvgpu_container_busy_seconds_total{who} 0.0\n" in text
    assert "pyvgpu_cdi_required 1.0\n" in text
    assert 'pyvgpu_kubelet_call_seconds_count{call="allocate",result="done"} 2.0\n' in text
    assert node.ask("/status")[1].startswith("<!doctype html>")
    shown = json.loads(node.ask("/status.json")[1])
    (seen,) = shown["devices"][0]["containers"]
    assert (shown["kind"], shown["devices"][0]["uuid"]) == ("node", uuid)
    assert (seen["pod"], seen["promised"], seen["promisedBytes"]) == ("p", 0.3, 2 << 30)
    kubelet.remove(one)
    node.until(lambda: who not in node.ask("/metrics")[1])


def test_the_log_can_be_read_by_programs(node):
    node.start("--listen", "127.0.0.1:0", "--log-format", "json")
    node.until(lambda: "answering on port" in node.log.read_text())
    node.kubelet.until_offered()
    entries = [json.loads(line) for line in node.log.read_text().splitlines()]
    (said,) = [it for it in entries if it["message"].startswith("answering on port")]
    assert (said["level"], said["logger"]) == ("info", "pyvgpu.deviceplugin.outside")
    assert datetime.datetime.fromisoformat(said["time"]).tzinfo
