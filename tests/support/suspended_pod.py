"""A pod with a CUDA program on a simulated node, whose real agent suspends and resumes it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from typing import TYPE_CHECKING, Any

import checkpoints
import fake_kubelet
import granted
import node_process
import waiting
from fake_kubelet import container
from fake_kubelet import pod as pod_of

from pyvgpu import names, region
from pyvgpu.deviceplugin import grants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cluster_of_one import Cluster
    from fake_kubelet import Pod
    from node_process import Node

SOURCE = checkpoints.SERVER + checkpoints.TARGET + checkpoints.LOOP
NO_ROOM = "there is no room for it now: it needs "
HOLDING = "context(); p = alloc(1 << 30); fill(p); answer(p > 0)"


class Room:
    """A node with an agent, the API server, and pods."""

    def __init__(
        self, node: Node, cluster: Cluster, folder: Path, options: Sequence[str] = ()
    ) -> None:
        self.node, self.cluster, self._folder, self.options = node, cluster, folder, options
        self.agent = self.start()

    def start(self) -> Any:
        """Start an agent that suspends."""
        self.agent = self.node.start(
            *("--kubeconfig", self.cluster.kubeconfig, "--suspend", "--listen", "127.0.0.1:0"),
            *self.options,
        )
        return self.agent

    def kill(self) -> None:
        """Kill the agent as a node does that is out of memory."""
        node_process.ended(self.agent, signal.SIGKILL)

    def place(
        self,
        name: str,
        containers: Sequence[str] = ("main",),
        share: tuple[int, int] = (20, 8),
        **notes: str,
    ) -> Pod:
        """Create a pod and let kubelet admit it; *share*: vcore and units of each container."""
        kubelet = self.node.kubelet
        kubelet.until_offered((names.VCORE_RESOURCE, names.VMEMORY_RESOURCE))
        one = pod_of(name, *(container(each, *share) for each in containers))
        self.cluster.add(one, notes)
        return kubelet.admit(one)

    @contextlib.contextmanager
    def tenant(
        self,
        name: str,
        containers: Sequence[str] = ("main",),
        within: Sequence[object] = (),
        share: tuple[int, int] = (20, 8),
    ) -> Iterator[Tenant]:
        """Run a pod whose containers have such a *share* each, and hold 1 GiB."""
        with self.running(self.place(name, containers, share), within) as tenant:
            yield tenant

    @contextlib.contextmanager
    def running(self, one: Pod, within: Sequence[object] = ()) -> Iterator[Tenant]:
        """Start the containers of a pod, as soon as the agent lets them start."""
        name, containers = one.name, [each.name for each in one.containers]
        with contextlib.ExitStack() as stack:
            made = {}
            for each in containers:
                edits = self.node.specification(self._started(one, each))
                root = self._folder / f"{name}-{each}"
                process = granted.start(edits, root, SOURCE, within=within)
                stack.callback(process.communicate)
                stack.callback(process.kill)
                made[each] = checkpoints.Lines(process)
                made[each].send(HOLDING)
                assert made[each].answer() is True
            yield Tenant(self, one, made)

    def _started(self, one: Pod, name: str) -> Any:
        """Start a container, like kubelet again and again while it is refused for now."""
        found = []

        def start() -> bool:
            try:
                found.append(self.node.kubelet.start_container(one, name))
            except fake_kubelet.StartError as exc:
                if NO_ROOM not in str(exc):
                    raise
            return bool(found)

        waiting.wait_until(start, found=self.node.log.read_text)
        return found[0]

    def metrics(self, name: str, labels: str = "") -> list[float]:
        """Return the values of the agent's metric *name* with *labels*, a regular expression."""
        _, text = self.node.ask("/metrics")
        found = re.findall(rf"^{name}{{.*{labels}.*}} (\S+)$", text, re.MULTILINE)
        return [float(value) for value in found]

    def quotas(self) -> list[region.Suspension]:
        """Return what the quotas of all grants say."""
        found = []
        for folder in sorted(self.node.files.glob("grants/*")):
            if not grants.is_id(folder.name):
                continue  # prepared for later grants
            with (
                contextlib.suppress(FileNotFoundError),  # the grant has just ended
                (folder / names.QUOTA_FILE).open("rb") as file,
            ):
                found.append(region.read_limits(file.fileno()).suspension)
        return found


class Tenant:
    """A pod and its programs."""

    def __init__(self, room: Room, one: Pod, programs: dict[str, checkpoints.Lines]) -> None:
        self.room, self.pod, self.programs = room, one, programs

    @property
    def program(self) -> checkpoints.Lines:
        """The program of a pod with one container."""
        (only,) = self.programs.values()
        return only

    def annotate(self, **notes: str | None) -> None:
        """Set annotations of pyvgpu.io, or remove them."""
        path = self.room.cluster.path_of(self.pod)
        thing = self.room.cluster.api.read(path)
        for name, value in notes.items():
            thing["metadata"]["annotations"].pop(f"{names.DOMAIN}/{name}", None)
            if value is not None:
                thing["metadata"]["annotations"][f"{names.DOMAIN}/{name}"] = value
        self.room.cluster.api.put(path, thing)

    @property
    def answer(self) -> dict[str, Any]:
        """The agent's annotation; empty: there is none."""
        text = self.room.cluster.notes(self.pod).get(names.SUSPENSION_ANNOTATION)
        return json.loads(text) if text else {}

    def until(self, state: str) -> None:
        """Wait until the annotation has this state; running: until there is none."""
        try:
            waiting.wait_until(lambda: self.answer.get("state", "running") == state)
        except AssertionError as exc:
            raise AssertionError(self.room.node.log.read_text()) from exc

    @property
    def events(self) -> list[str]:
        """The messages of its events."""
        return self.room.cluster.events(self.pod)


@contextlib.contextmanager
def room(
    node: Node, cluster: Cluster, folder: Path, options: Sequence[str] = ()
) -> Iterator[Room]:
    """Run an agent with these *options*; it ends with the test."""
    made = Room(node, cluster, folder, options)
    yield made
    node_process.ended(made.agent)
