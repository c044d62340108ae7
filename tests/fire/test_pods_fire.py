"""Pods under the policy of oversubscription, under fire.

Four pods reserve more than their two devices have. Their users suspend them, keep or release their
reservations, forbid suspension, replace pods by others of the same name, and stop programs; the
agent and its callers of the driver are killed in between.
"""

import contextlib
import os
import random
import select
import signal
import tempfile
import time
from pathlib import Path

import checkpoints
import cluster_of_one
import driver_memory
import granted
import node_process
import pytest
import suspended_pod
import waiting
from fake_kubelet import FakeKubelet, StartError

from pyvgpu import region
from pyvgpu.allocator import suspensions
from pyvgpu.deviceplugin import grants

pytestmark = pytest.mark.fire

OPERATIONS = int(os.environ.get("PYVGPU_FIRE_OPERATIONS", "20000"))
ROUNDS = max(4, OPERATIONS // 100_000)
SEED = int(os.environ.get("PYVGPU_FIRE_SEED", "1"))
SHARE = (60, 36)  # a device has room for one
OPTIONS = (
    *("--oversubscribe", "2", "--oversubscribe-idle", "1"),
    *("--oversubscribe-slice", "1", "--oversubscribe-moves", "1000"),
)
REQUESTS = (None, None, suspensions.KEEP, suspensions.RELEASE, suspensions.NEVER)


class Member:
    """A pod and its program, if it has begun."""

    def __init__(self, room, name, folder):
        self.room, self.folder = room, folder
        self.pod = room.place(name, share=SHARE)
        self.program = None
        self.questions = 0  # without an answer yet
        self._rest = b""  # of an answer

    def try_start(self):
        """Let kubelet start its container, which the agent refuses while there is no room."""
        if self.program is not None:
            return
        try:
            answer = self.room.node.kubelet.start_container(self.pod, "main")
        except StartError as exc:
            if suspended_pod.NO_ROOM not in str(exc):
                raise
            return
        edits = self.room.node.specification(answer)
        self.program = checkpoints.Lines(granted.start(edits, self.folder, suspended_pod.SOURCE))
        self.ask(suspended_pod.HOLDING)

    def ask(self, line="answer(is_intact(p))"):
        """Let the program use its memory; it may be suspended."""
        self.program.send(line)
        self.questions += 1

    def check(self, seconds=0.0):
        """Every byte is as it was; return whether no answer is missing after *seconds*."""
        while self.questions:
            file = self.program.process.stdout.fileno()
            ready, _, _ = select.select([file], [], [], seconds)
            if not ready:
                return False
            # Not by readline(): select does not see the lines that it has buffered.
            found = os.read(file, 4096)
            *lines, self._rest = (self._rest + found).split(b"\n")
            assert found, "the program has ended"
            assert set(lines) <= {b"true"}
            self.questions -= len(lines)
        return True

    def annotate(self, value):
        suspended_pod.Tenant(self.room, self.pod, {}).annotate(suspend=value)

    def end(self):
        """Kill its program and delete the pod."""
        if self.program is not None:
            self.program.process.kill()
            self.program.process.communicate()
        self.room.cluster.api.delete(self.room.cluster.path_of(self.pod))
        self.room.node.kubelet.remove(self.pod)


class Crowd:
    """The pods, and what must always be true of them."""

    def __init__(self, room, pick, folder):
        self.room, self.pick, self._folder, self._number = room, pick, folder, 0
        self.members = [self.member(name) for name in "abcd"]

    def member(self, name):
        self._number += 1
        return Member(self.room, name, self._folder / f"root-{self._number}")

    def grants(self):
        """Return the suspension, the device and the bytes charged of each pod's grant, by uid."""
        found = {}
        for path in self.room.node.files.glob("grants/*"):
            if not grants.is_id(path.name):
                continue
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                file, usage = (os.open(path / x, os.O_RDONLY) for x in ("quota", "usage"))
                try:
                    limits = region.read_limits(file)
                    charged = region.read_usage(usage, 1).charged[0]
                finally:
                    os.close(file)
                    os.close(usage)
                found[path.name] = limits.suspension, limits.devices[0].uuid, charged
        return found

    def uses(self):
        """Return by device how many pods whose programs have begun may use its memory."""
        found = {}
        for mark, uuid, charged in self.grants().values():
            if charged and (not mark.suspended or mark.kept):
                found[uuid] = found.get(uuid, 0) + 1
        return found

    def is_within_the_devices(self):
        """One pod may be suspended, and another resumed, between two samples: so it takes two."""
        return max(self.uses().values(), default=0) < 2 or max(self.uses().values()) < 2

    def agrees(self):
        """Return whether the ledgers of pods on the devices are what the driver has given out."""
        found = self.grants().values()
        on_device = sum(charged for mark, _, charged in found if not mark.suspended)
        used = sum(driver_memory.used_bytes(self.room.node.machine, x) for x in (0, 1))
        return used == on_device and not any(
            mark.gated and not mark.suspended for mark, *_ in found
        )

    def watch(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert self.is_within_the_devices(), self.room.node.log.read_text()
            for each in self.members:
                each.check()
            time.sleep(0.02)

    def replace(self, one):
        """Delete a pod, and create one of the same name."""
        one.end()
        self.members[self.members.index(one)] = self.member(one.pod.name)

    def harass(self):
        """Let one user and one fault interfere."""
        one, request, fault = (self.pick.choice(x) for x in (self.members, REQUESTS, "akds-"))
        if self.pick.random() < 0.2:
            self.replace(one)
        else:
            one.annotate(request)
        for each in self.members:
            if each.program is not None and self.pick.random() < 0.5:
                each.ask()
        self.watch(self.pick.uniform(0, 1))
        if fault == "a":
            self.room.kill()
            self.room.start()
            self.room.node.kubelet.until_offered()
        elif fault == "d":
            for pid in callers(self.room.agent.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif fault == "s" and one.program is not None and one in self.members:
            os.kill(one.program.pid, signal.SIGSTOP)
            self.watch(self.pick.uniform(0, 1))
            os.kill(one.program.pid, signal.SIGCONT)
        for each in self.members:
            each.try_start()
        self.watch(1)

    def settle(self):
        """Let the users want nothing any more: then every program goes on in its turn."""
        for each in self.members:
            each.annotate(None)
        for each in self.members:
            waiting.wait_until(lambda each=each: each.try_start() or each.program is not None)
            each.ask()
        for each in self.members:
            assert each.check(waiting.WHOLE), self.room.node.log.read_text()
        waiting.wait_until(self.agrees, found=self.room.node.log.read_text)


def callers(agent):
    """Return the pids of the agent's children that call the driver."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_child = f"PPid:\t{agent}\n" in (path / "status").read_text()
            if is_child and b"checkpoint_calls" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


@pytest.fixture(name="room")
def fixture_room(tmp_path):
    """Return a node with two devices, an agent with the policy, and an API server."""
    with contextlib.ExitStack() as stack:
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="pyvgpu-kubelet-"))
        kubelet = FakeKubelet(Path(sockets)).start()
        stack.callback(kubelet.stop)
        node = stack.enter_context(node_process.running(kubelet, tmp_path))
        cluster = stack.enter_context(cluster_of_one.running(tmp_path))
        yield stack.enter_context(suspended_pod.room(node, cluster, tmp_path, OPTIONS))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_pods_never_exceed_their_devices_and_all_go_on(room, tmp_path):
    crowd = Crowd(room, random.Random(SEED), tmp_path)
    try:
        for _ in range(ROUNDS):
            crowd.harass()
        crowd.settle()
        assert not any(
            "lost" in x.lower() for each in crowd.members for x in room.cluster.events(each.pod)
        )
    except BaseException:
        print(f"PYVGPU_FIRE_SEED={SEED}")
        raise
    finally:
        for each in crowd.members:
            each.end()
    waiting.wait_until(lambda: not crowd.grants(), found=room.node.log.read_text)
    assert [driver_memory.used_bytes(room.node.machine, x) for x in (0, 1)] == [0, 0]
