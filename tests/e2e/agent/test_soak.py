"""Pods in waves on eight devices, while agent, kubelet and containerd are killed at random.

Each container sees the memory it requested, and no grant is left in the end. `make soak` runs
200 pods; every run of the suite includes a part of them.
"""

import random
import signal
import statistics
from pathlib import Path

import agents
import killing
import pytest
import rig
import soaking
from agents import NODE, UNIT, container

from pyvgpu import names
from pyvgpu.deviceplugin.grants import grant_log
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids

REGISTERED_SECONDS = 1.0

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(soaking.SECONDS + 180)]

STAYS = "trap 'exit 0' TERM; while true; do sleep 0.1; done"
SAYS = "/client > /dev/termination-log 2>&1"


def made(number, draw):
    """Return a task with a random pod shape."""

    def ask(most=40):
        return draw.choice(range(10, most + 1, 10)), draw.choice((2, 4, 6, 8, 12))

    works = f"{SAYS}; sleep {draw.uniform(0, 4):.1f}"
    shape = draw.choice(("one", "one", "two", "init", "side", "whole"))
    if shape == "whole":
        asked, inits = {"a": (100, 0)}, ()
    elif shape == "two":
        asked, inits = {"a": ask(), "b": ask()}, ()
    else:
        asked, inits = {"a": ask()}, {"init": ("i",), "side": ("s",)}.get(shape, ())
        asked |= {name: ask(60) for name in inits}
    more = {"s": {"restartPolicy": "Always"}}
    scripts = {"s": f"{SAYS}; {STAYS}", "i": SAYS}
    all_of_them = {
        name: container(name, *quota, scripts.get(name, works), **more.get(name, {}))
        for name, quota in asked.items()
    }
    mains = [container for name, container in all_of_them.items() if name not in inits]
    spec = {"initContainers": [all_of_them[name] for name in inits]} if inits else {}
    sizes = {name: units * UNIT for name, (_, units) in asked.items()}
    return soaking.Task(f"p{number}", rig.pod("", *mains, **spec), sizes)


@pytest.fixture(scope="module")
def eight(running, tmp_path_factory):
    """An agent with eight devices, which replaces the shared agent."""
    running.until_idle()
    running.stop()
    made = agents.Agent(tmp_path_factory.mktemp("eight"), "t4:8")
    made.start()
    yield made
    made.stop()


def test_each_pod_has_its_quota_despite_kills(eight):
    draw = random.Random(soaking.SEED)
    killer = killing.Killer(eight, soaking.SEED, soaking.PAUSE)
    with rig.space() as space:
        soak = soaking.Soak(space, eight, killer)
        soak.run(lambda number: made(number, draw))
        stays = container("a", 30, 8, f"{SAYS}; {STAYS}")
        for number in range(4):
            space.create("pods", rig.pod(f"stays{number}", stays, restartPolicy="Always"))
        for number in range(4):
            space.until("pods", f"stays{number}", lambda pod: rig.runs(pod, "a"))
        killer.kill(["containerd", "agent", "kubelet"])
        eight.wait(lambda: equals_the_truth(space, eight))
    soak.say("pods")
    assert soak.mismatches == []
    assert soak.outside == []
    assert soak.failures == []
    assert soak.checked >= soaking.PODS
    # Other jobs share the cores and sometimes use all of them.
    assert statistics.median(killer.registered or [0]) <= REGISTERED_SECONDS, killer.registered
    eight.wait(lambda: not remembered(eight))
    eight.until_idle()
    eight.stop(signal.SIGKILL)
    with grant_log.Checkpoint(eight.folder / "state", NODE) as kept:
        left = kept.grants
    eight.start()
    assert left == {}


def remembered(agent):
    """Return the number of grants in the agent's metrics."""
    lines = agent.ask("/metrics").splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("pyvgpu_grants{"))


def equals_the_truth(space, agent):
    """Return whether the quotas match the running pods; assert that no device is overcommitted."""
    live = {pod["metadata"]["uid"]: pod for pod in space.pods() if rig.phase(pod) == "Running"}
    held = {}
    for entry in checkpoint_file.CheckpointFile(Path("/var/lib/kubelet/device-plugins")).read():
        if entry.kind is device_ids.ResourceKind.VCORE and entry.uid in live:
            held[entry.uid] = entry.grant
    if len(live) != len(held) or set(held.values()) != agent.present():
        return False
    sums = {}
    for uid, grant_id in held.items():
        (limits,) = agent.limits(grant_id)
        asked = live[uid]["spec"]["containers"][0]["resources"]["limits"]
        assert str(limits.vcore) == asked[names.VCORE_RESOURCE]
        assert str(limits.vmemory // UNIT) == asked[names.VMEMORY_RESOURCE]
        before = sums.get(limits.uuid, (0, 0))
        sums[limits.uuid] = (before[0] + limits.vcore, before[1] + limits.vmemory)
    size = agent.machine.devices[0].memory_bytes
    assert all(vcore <= 100 and vmemory <= size for vcore, vmemory in sums.values())
    return True
