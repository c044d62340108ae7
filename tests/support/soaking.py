"""Soak test: recreates failed pods until they succeed, while servers of the node are killed.

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
SECONDS = 20 * PODS + 120  # time limit for all of them to succeed
_WAVE = 25  # concurrent pods
PAUSE = (3.0, 8.0) if PODS > _WAVE else (1.5, 3.0)  # seconds between two kills, least and most


@dataclasses.dataclass
class Task:
    """A pod that the soak, as its owner, recreates until it succeeds."""

    name: str
    template: dict[str, Any]
    asked: dict[str, int]  # by container: bytes; 0: whole devices
    attempt: int = 0
    done: bool = False

    @property
    def pod(self) -> str:
        """The name of its current pod."""
        return f"{self.name}-{self.attempt}"


class Soak:
    """Runs all tasks and collects the results."""

    def __init__(self, space: rig.Space, agent: agents.Agent, killer: Killer) -> None:
        self.space, self.agent, self.killer = space, agent, killer
        self.mismatches: list[tuple[object, ...]] = []
        self.outside: list[Any] = []
        self.failures: list[Any] = []
        self.refused_in_windows = self.disturbed = 0
        self.checked = 0
        self.took = 0.0  # seconds

    def run(self, made: Callable[[int], Task]) -> None:
        """Run PODS tasks, built by ``made(number)``, in waves until each has succeeded.

        The killer runs meanwhile.
        """
        begun = time.monotonic()
        self.killer.start()
        try:
            for first in range(0, PODS, _WAVE):
                self._run(made(number) for number in range(first, min(first + _WAVE, PODS)))
        finally:
            self.killer.stop()
        self.took = time.monotonic() - begun

    def _run(self, tasks: Iterable[Task]) -> None:
        tasks = list(tasks)
        for task in tasks:
            self._create(task)
        end = time.monotonic() + SECONDS
        while waiting := {left.pod: left for left in tasks if not left.done}:
            assert time.monotonic() < end, [
                self.space.read("pods", name)["status"] for name in waiting
            ]
            time.sleep(0.5)
            self.killer.check()
            for pod in self.space.pods():
                task = waiting.get(pod["metadata"]["name"])
                if task is not None and rig.has_ended(pod):
                    self._evaluate(task, pod)

    def _create(self, task: Task) -> None:
        self.space.create("pods", {**task.template, "metadata": {"name": task.pod}})

    def _evaluate(self, task: Task, pod: dict[str, Any]) -> None:
        for name, size in task.asked.items():
            with contextlib.suppress(KeyError):
                self._compare(pod, name, size, agents.said(pod, name)["total"])
        task.done = rig.phase(pod) == "Succeeded"
        if not task.done:
            self._poll_into(pod)
        self.space.server.call("DELETE", self.space.path("pods", task.pod))
        if not task.done:
            task.attempt += 1
            self._create(task)

    def _compare(self, pod: Mapping[str, Any], name: str, size: int, total: str) -> None:
        wanted = size or self.agent.machine.devices[0].memory_bytes
        self.checked += 1
        if int(total) != wanted:
            self.mismatches.append((pod["metadata"]["name"], name, wanted, total))

    def _poll_into(self, pod: Mapping[str, Any]) -> None:
        """Classify a failed pod: a failure while a server was down does not count."""
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
        """Print the results, with *what* as the noun for the pods."""
        killed = self.killer.killed
        print(
            f"\n{PODS} {what} in {self.took:.0f} s, {self.checked} containers checked, killed "
            f"{ ({name: killed.count(name) for name in sorted(set(killed))}) }; mismatches "
            f"{len(self.mismatches)}; UnexpectedAdmissionError {len(self.outside)}, and "
            f"{self.refused_in_windows} while a server was down; other failures then "
            f"{self.disturbed}; registered after "
            f"{', '.join(f'{seconds:.2f}' for seconds in self.killer.registered)} s"
        )
