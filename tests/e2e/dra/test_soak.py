"""Claims of many sizes on four devices, while agent, kubelet and containerd are killed at random.

Each container sees the memory its claim requested, and no grant is left in the end. `make
soak-claims` runs 200 pods; every run of the suite includes a part of them.
"""

import random
import signal

import agents
import claimed
import killing
import pytest
import rig
import soaking
from agents import NODE
from claimed import container, request

from pyvgpu.deviceplugin.grants import grant_log

DEVICES = 4
OPTIONS = ("--allocation-api", "dra")

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(soaking.SECONDS + 180)]

SAYS = "/client > /dev/termination-log 2>&1"
MIB = 1 << 20


def made(space, number, draw):
    """Create a claim template of a random shape; return a task with it."""
    name = f"p{number}"
    sizes = [draw.choice((700, 1024, 2000, 3072)) for _ in range(2)]
    shape = draw.choice(("one", "one", "two", "parts", "whole"))
    works = f"{SAYS}; sleep {draw.uniform(0, 3):.1f}"
    if shape == "whole":
        requests, asked = [request()], {"a": 0}
    elif shape == "parts":
        requests = [
            request(draw.choice((10, 20, 30)), f"{size}Mi", name=name)
            for name, size in zip("ab", sizes, strict=True)
        ]
        asked = {name: size * MIB for name, size in zip("ab", sizes, strict=True)}
    else:
        requests = [request(draw.choice((10, 20, 40)), f"{sizes[0]}Mi")]
        asked = dict.fromkeys("ab" if shape == "two" else "a", sizes[0] * MIB)
    space.create("resourceclaimtemplates", claimed.template(name, *requests))
    containers = [
        container(letter, works, part=letter if shape == "parts" else "") for letter in asked
    ]
    return soaking.Task(name, claimed.pod("", *containers, of=name), asked)


@pytest.fixture(scope="module")
def four(running, tmp_path_factory):
    """An agent with four devices, which replaces the shared agent."""
    running.until_idle()
    running.stop()
    made = agents.Agent(tmp_path_factory.mktemp("four"), f"t4:{DEVICES}")
    made.begin(*OPTIONS)
    made.wait(offers)
    yield made
    made.stop()


def offers():
    return len(claimed.published()) == DEVICES


def test_each_claim_has_its_quota_despite_kills(four):
    draw = random.Random(soaking.SEED)
    killer = killing.Killer(four, soaking.SEED, soaking.PAUSE, OPTIONS, offers)
    with rig.space() as space:
        soak = soaking.Soak(space, four, killer)
        soak.run(lambda number: made(space, number, draw))
    soak.say("pods with claims")
    assert soak.mismatches == []
    assert soak.outside == []
    assert soak.failures == []
    assert soak.checked >= soaking.PODS
    four.until_idle()
    (one,) = claimed.slices()
    assert len(one["spec"]["devices"]) == DEVICES
    four.stop(signal.SIGKILL)
    with grant_log.Checkpoint(four.folder / "state", NODE) as kept:
        left = kept.grants
    four.begin(*OPTIONS)
    assert left == {}
