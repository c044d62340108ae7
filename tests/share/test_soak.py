"""Soak test of time shares: processes are killed and stopped at random, for a given time.

Once on the virtual clock of a scene, which other load on this computer does not disturb, and once
with unmodified `pyvgpu run`, including supervisors, in real time.

Variables: PYVGPU_SOAK_SECONDS, and PYVGPU_SOAK_SEED, which `make soak-share` draws for each run.
"""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import rights
import scene_runs
import scores
from scene_runs import ARBITER, SECOND_NS, Event, Scene, Tenant

SECONDS = int(os.environ.get("PYVGPU_SOAK_SECONDS", "20"))
SEED = int(os.environ.get("PYVGPU_SOAK_SEED", "1"))
POINTS = 5  # tolerance of a share, percent of the device
AGAIN_S = 1.0  # time in which it recovers
SCENE_S = 20
WRECK = Path(__file__).with_name("wreck.py")
APART = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o mode=755 none /run && exec "$@"')

US = 1_000
TENANTS = (
    Tenant(40, "async", 280 * US, processes=2),
    Tenant(20, "sync", 280 * US),
    Tenant(25, "async", 280 * US),
)
VICTIMS = (*range(len(TENANTS)), ARBITER)

pytestmark = pytest.mark.soak


@dataclasses.dataclass(frozen=True, slots=True)
class Blow:
    """A fault of one process: it is killed, or stopped for a while."""

    at_s: float
    victim: int
    stopped_s: float | None  # None: it is killed and replaced

    @property
    def over_s(self) -> float:
        return self.at_s + (self.stopped_s or 0)

    def events(self):
        if self.stopped_s is None:
            return (Event(self.at_s, "kill", self.victim, 1),)
        return (
            Event(self.at_s, "signal", self.victim, signal.SIGSTOP),
            Event(self.over_s, "signal", self.victim, signal.SIGCONT),
        )


def blows_of(chance, end_s):
    """Return faults in quick succession, with time to recover now and then."""
    blows, at = [], 1.0
    while at < end_s:
        stopped = chance.choice((None, None, chance.uniform(0.01, 0.7)))
        blows.append(Blow(at, chance.choice(VICTIMS), stopped))
        at = blows[-1].over_s + chance.choice((0.01, 0.1, AGAIN_S + 1))
    return blows


def rests_of(blows, end_s):
    """Return the intervals without faults, each from the end of recovery on."""
    edges = [*(blow.at_s for blow in blows[1:]), end_s]
    rests = [(blow.over_s + AGAIN_S, next_s) for blow, next_s in zip(blows, edges, strict=True)]
    return [(begin, end) for begin, end in rests if end - begin >= 0.5]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 5 + 60)
def test_random_faults_hang_no_tenant_and_shares_recover_within_a_second(tmp_path):
    for turn in range(max(1, SECONDS // SCENE_S)):
        chance = random.Random(SEED + turn)
        blows = blows_of(chance, SCENE_S - AGAIN_S - 1)
        events = tuple(event for blow in blows for event in blow.events())
        trace = scene_runs.play(Scene(TENANTS, SCENE_S, events), tmp_path)
        evaluate(trace, blows, f"PYVGPU_SOAK_SEED={SEED + turn}: {blows}")


def evaluate(trace, blows, story):
    rests = rests_of(blows, SCENE_S)
    assert rests, story
    for number, tenant in enumerate(TENANTS):
        had = scores.of(trace, number)
        for begin, end in rests:
            share = had.share(begin * SECOND_NS, end * SECOND_NS)
            assert share == pytest.approx(tenant.vcore, abs=POINTS), (number, begin, story)
        seconds = range(0, trace.at_ns[-1] - SECOND_NS, SECOND_NS // 20)
        most = max(had.share(begin, begin + SECOND_NS) for begin in seconds)
        assert most <= tenant.vcore + POINTS, (number, story)


@pytest.mark.slow
@rights.needs_mounts
@pytest.mark.timeout(SECONDS * 3 + 120)
def test_runs_tolerate_death_or_stop_of_any_of_their_processes():
    """In a separate mount namespace, since all runs on a machine share one arbiter."""
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as place:
        ran = subprocess.run(
            [*APART, "sh", sys.executable, WRECK, str(SEED), str(SECONDS), place],
            env={**os.environ, "PYTHONPATH": str(Path(rights.__file__).parent)},
            capture_output=True,
            text=True,
            check=False,
        )
    story = f"PYVGPU_SOAK_SEED={SEED}\n{ran.stdout}"
    assert (ran.returncode, ran.stderr) == (0, ""), story
    *rests, last = map(json.loads, ran.stdout.splitlines())
    assert rests, story
    for rest in rests:
        for vcore, (share, kept) in zip((40, 30), rest["had"], strict=True):
            # A run that the machine did not schedule cannot have got its share.
            assert vcore - POINTS - kept <= share, (story, rest)
    for vcore, most in zip((40, 30), last["most"], strict=True):
        assert most <= vcore + POINTS, story
