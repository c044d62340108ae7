"""Pods that are made anew until they have succeeded, while servers of the node are killed.

Variables: PYVGPU_SOAK_PODS and PYVGPU_SOAK_SEED.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import time
from typing import TYPE_CHECKING, Any

import agents
import rig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from killing import Killer

PODS = int(os.environ.get("PYVGPU_SOAK_PODS", "12"))
SEED = int(os.environ.get("PYVGPU_SOAK_SEED", "7"))
SECONDS = 20 * PODS + 120  # within which all of them have succeeded
_WAVE = 25  # pods at once
PAUSE = (3.0, 8.0) if PODS > _WAVE else (1.5, 3.0)  # seconds between two kills, least and most


@dataclasses.dataclass
class Task:
    """A pod that is made anew by us, its owner, until it has succeeded."""

    name: str
    template: dict[str, Any]
    asked: dict[str, int]  # by container: bytes; 0: whole devices
    attempt: int = 0
    done: bool = False

    @property
    def pod(self) -> str:
        """The name of its pod now."""
        return f"{self.name}-{self.attempt}"


class Soak:
    """What is found out of all tasks."""

    def __init__(self, space: rig.Space, agent: agents.Agent, killer: Killer) -> None:
        self.space, self.agent, self.killer = space, agent, killer
        self.mismatches: list[tuple[object, ...]] = []
        self.outside: list[Any] = []
        self.failures: list[Any] = []
        self.refused_in_windows = self.disturbed = 0
        self.checked = 0
        self.took = 0.0  # seconds

    def run(self, made: Callable[[int], Task]) -> None:
        """Run PODS tasks, each *made* of its number, in waves until each has succeeded.

        Meanwhile the killer kills.
        """
        begun = time.monotonic()
        self.killer.start()
        try:
            for first in range(0, PODS, _WAVE):
                self._run(made(it) for it in range(first, min(first + _WAVE, PODS)))
        finally:
            self.killer.stop()
        self.took = time.monotonic() - begun

    def _run(self, tasks: Iterable[Task]) -> None:
        tasks = list(tasks)
        for task in tasks:
            self._create(task)
        end = time.monotonic() + SECONDS
        while waiting := {it.pod: it for it in tasks if not it.done}:
            assert time.monotonic() < end, [
                self.space.read("pods", it)["status"] for it in waiting
            ]
            time.sleep(0.5)
            self.killer.check()
            for pod in self.space.pods():
                task = waiting.get(pod["metadata"]["name"])
                if task is not None and rig.has_ended(pod):
                    self._judge(task, pod)

    def _create(self, task: Task) -> None:
        self.space.create("pods", {**task.template, "metadata": {"name": task.pod}})

    def _judge(self, task: Task, pod: dict[str, Any]) -> None:
        for name, size in task.asked.items():
            with contextlib.suppress(KeyError):
                self._compare(pod, name, size, agents.said(pod, name)["total"])
        task.done = rig.phase(pod) == "Succeeded"
        if not task.done:
            self._look_into(pod)
        self.space.server.call("DELETE", self.space.path("pods", task.pod))
        if not task.done:
            task.attempt += 1
            self._create(task)

    def _compare(self, pod: Mapping[str, Any], name: str, size: int, total: str) -> None:
        wanted = size or self.agent.machine.devices[0].memory_bytes
        self.checked += 1
        if int(total) != wanted:
            self.mismatches.append((pod["metadata"]["name"], name, wanted, total))

    def _look_into(self, pod: Mapping[str, Any]) -> None:
        """Judge a pod that has failed: what happens while somebody is away is no fault."""
        created = datetime.datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
        excused = self.killer.was_away(created.timestamp(), time.time())
        if pod["status"].get("reason") == "UnexpectedAdmissionError":
            self.refused_in_windows += excused
            if not excused:
                self.outside.append(pod["status"])
        elif excused:
            self.disturbed += 1
        else:
            self.failures.append(pod["status"])

    def say(self, what: str) -> None:
        """Print what became of *what*."""
        killed = self.killer.killed
        print(
            f"\n{PODS} {what} in {self.took:.0f} s, {self.checked} containers checked, killed "
            f"{ ({it: killed.count(it) for it in sorted(set(killed))}) }; mismatches "
            f"{len(self.mismatches)}; UnexpectedAdmissionError {len(self.outside)}, and "
            f"{self.refused_in_windows} while somebody was away; others that failed then "
            f"{self.disturbed}; registered after "
            f"{', '.join(f'{it:.2f}' for it in self.killer.registered)} s"
        )
