"""Kills a node's agent, kubelet and containerd at random, and records when any was down."""

from __future__ import annotations

import datetime
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import rig

from pyvgpu import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents import Agent

KUBELET_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")

_CLUSTER = Path(__file__).parents[1] / "e2e" / "cluster" / "cluster"
_REGISTERED = re.compile(r"^(\S+ \S+) .* registered pyvgpu\.io/(\S+) with kubelet$", re.MULTILINE)
_SLACK_SECONDS = 2.0  # kubelet may finish work after an outage; pods' times are whole seconds


def cluster(*words: str) -> None:
    """Run a command of the cluster script."""
    subprocess.run([_CLUSTER, *words], check=True, capture_output=True, timeout=rig.SECONDS)


def serves_since(socket: float) -> bool:
    """Return whether a kubelet newer than that *socket* time serves; start one otherwise.

    A kubelet that finds no runtime exits; on a node, systemd would restart it.
    """
    if KUBELET_SOCKET.exists() and KUBELET_SOCKET.stat().st_ctime != socket:
        return True
    cluster("start", "kubelet")
    return False


class Killer:
    """Kills agent, kubelet and containerd, one or all, from :meth:`start` until :meth:`stop`."""

    def __init__(
        self,
        agent: Agent,
        seed: int,
        pause: tuple[float, float],
        options: tuple[object, ...] = (),
        offers: Callable[[], bool] | None = None,
    ) -> None:
        self._agent = agent
        self._options = options  # of the agent
        self._offers = offers or self._counts  # whether any device is allocatable
        self._draw = random.Random(seed)
        self._pause = pause
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None
        self.windows: list[tuple[float, float]] = []  # in which a server was down
        self.killed: list[str] = []
        self.registered: list[float] = []  # seconds after kubelet's socket appeared

    def start(self) -> None:
        """Start killing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop once every killed server is back."""
        self._stopped.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise the killer thread's exception, if it has failed."""
        if self._failure is not None:
            raise self._failure

    def was_away(self, since: float, until: float) -> bool:
        """Return whether any server was down between these times."""
        return any(
            begin - _SLACK_SECONDS < until and since < end + _SLACK_SECONDS
            for begin, end in self.windows
        )

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._draw.uniform(*self._pause)):
                names = ["agent", "kubelet", "containerd"]
                if self._draw.random() < 0.75:
                    names = [self._draw.choice(names)]
                self._draw.shuffle(names)
                self.kill(names)
        except BaseException as exc:
            self._failure = exc

    def kill(self, names: list[str]) -> None:
        """Kill these in this order; return when all of them serve again."""
        begin = time.time()
        self.windows.append((begin, float("inf")))
        before, socket = self._agent.registrations(), KUBELET_SOCKET.stat().st_ctime
        back = [self._kill(name) for name in names]
        time.sleep(self._draw.uniform(0, 1.5))
        for one in back:
            one()
        if "kubelet" in names:
            self._agent.wait(lambda: serves_since(socket))
        if names != ["containerd"]:
            self._agent.wait(lambda: self._agent.registrations() >= before + 2)
        if "kubelet" in names:
            self._note_registration("agent" in names)
        self._agent.wait(self._offers)
        self.windows[-1] = (begin, time.time())
        self.killed += names

    def _kill(self, name: str) -> Callable[[], None]:
        """Kill one server; return the function that restarts it."""
        if name == "agent":
            self._agent.stop(signal.SIGKILL)
            return lambda: self._agent.begin(*self._options)
        pid = Path(os.environ["CLUSTER_RUN"], f"{name}.pid").read_text().strip()
        subprocess.run(["kill", "-KILL", pid], check=True)
        # The process is not our child: `restart` waits for its end and starts another.
        return lambda: cluster("restart", name)

    def _counts(self) -> bool:
        """Return whether any vcore and vmemory is; grants of whole devices reduce the memory."""
        found = self._agent.allocatable()
        return all(
            found.get(name, "0") != "0" for name in (names.VCORE_RESOURCE, names.VMEMORY_RESOURCE)
        )

    def _note_registration(self, agent_too: bool) -> None:
        if agent_too:
            return  # the agent was restarted itself
        there = KUBELET_SOCKET.stat().st_ctime
        self._agent.wait(lambda: len(_registrations(self._agent, there)) >= 2)
        self.registered.append(max(_registrations(self._agent, there)) - there)


def _registrations(agent: Agent, since: float) -> list[float]:
    """Return the times *since* then at which the agent registered a resource with kubelet."""
    found = [
        datetime.datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp()
        for at, _ in _REGISTERED.findall(agent.log.read_text())
    ]
    return [at for at in found if at >= since - 0.002]  # the log has milliseconds
