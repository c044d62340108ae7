"""A kubelet as device plugins meet it: real sockets, real messages, and its ways with ids.

What it does is what kubelet 1.36.3 does (pkg/kubelet/cm/devicemanager): a random subset of the
free ids unless the plugin prefers some; an init container's ids are offered again to containers
after it; ids are taken back when others are asked for; PreStartContainer before each start; after
a restart the ids are known from the checkpoint, and a plugin's options only when it has registered
again, so that PreStartContainer is silently left out until then.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import grpc
from waiting import PROMPT

from pyvgpu import names, wire
from pyvgpu.deviceplugin import messages, state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VCORE, VMEMORY = names.VCORE_RESOURCE, names.VMEMORY_RESOURCE
SECONDS = PROMPT


class AdmissionError(Exception):
    """A pod is Failed with UnexpectedAdmissionError."""


class StartError(Exception):
    """A container does not start now; kubelet will try again."""


@dataclasses.dataclass(frozen=True)
class Container:
    """A container of a pod, with its limits."""

    name: str
    limits: dict[str, int]
    init: bool = False
    native: bool = False  # an init container that is restarted always


def container(name: str, vcore: int, vmemory: int, **more: bool) -> Container:
    limits = {VCORE: vcore, VMEMORY: vmemory}
    return Container(name, {resource: n for resource, n in limits.items() if n}, **more)


@dataclasses.dataclass(frozen=True)
class Pod:
    """A pod; its uid is its own even if its name is another's."""

    name: str
    containers: tuple[Container, ...]
    namespace: str = "default"
    uid: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))


def pod(name: str, *containers: Container) -> Pod:
    return Pod(name, containers)


@dataclasses.dataclass
class Endpoint:
    """A plugin that has registered, or one of the time before a restart, which has no channel."""

    channel: grpc.Channel | None = None
    options: wire.Message | None = None
    stream: Any = None

    def call(self, method: str, request: bytes) -> bytes:
        if self.channel is None:
            raise StartError("endpoint has been stopped")
        call = self.channel.unary_unary(f"/{messages.SERVICE}/{method}")
        return call(request, timeout=SECONDS)


class FakeKubelet:
    """One node's kubelet; :meth:`start` and :meth:`stop` it as often as wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "device-plugins"
        self.pod_resources = folder / "pod-resources" / "kubelet.sock"
        self.pod_resources.parent.mkdir(parents=True)
        self.folder.mkdir()
        self.random = random.Random(7)
        self.pods: dict[str, Pod] = {}
        self.held: dict[tuple[str, str, str], tuple[frozenset[str], bytes]] = {}
        self.lists = 0  # calls of PodResources
        self.refuse_lists = 0  # so many of the next are over the rate
        self.change_list = lambda listed: listed  # what to lie about
        self.insists: dict[str, frozenset[str]] = {}  # by resource: what is given next
        self.listings: list[tuple[str, int]] = []  # what was sent: the resource, bytes
        self.ever_healthy: set[str] = set()  # resources of which any id ever was
        self._writing = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self.changed = threading.Condition()
        self.endpoints: dict[str, Endpoint] = {}
        self.devices: dict[str, dict[str, bool]] = {}  # by resource: is the id healthy?

    # --- its life ---------------------------------------------------------------------------

    def start(self) -> FakeKubelet:
        """Begin, as after a crash: with what the checkpoint has."""
        self._reset()
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        with contextlib.suppress(FileNotFoundError, ValueError):
            registered = _read_checkpoint(self.folder / state.FILE)
            self.endpoints = {it: Endpoint() for it in registered["RegisteredDevices"]}
            self.devices = {it: {} for it in registered["RegisteredDevices"]}
        self._servers = [
            self._serve(self.folder / messages.KUBELET_SOCKET, messages.REGISTER, self._register),
            self._serve(self.pod_resources, messages.LIST, self._list),
        ]
        return self

    def stop(self) -> None:
        """End; its socket of registration stays where it was."""
        for server, pool in self._servers:
            server.stop(None).wait()
            pool.shutdown()
        for endpoint in self.endpoints.values():
            if endpoint.channel is not None:
                endpoint.channel.close()

    def lose_checkpoint(self, content: bytes | None = None) -> None:
        """Forget, while stopped, who holds what: its file is gone, or has that *content*.

        Running containers go on, and kubelet allocates nothing for them when it starts again.
        """
        self.held.clear()
        file = self.folder / state.FILE
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)

    def allocate_again(self, of: Pod, name: str) -> None:
        """Do at a start what kubelet does for a container that does not run then."""
        (it,) = (it for it in of.containers if it.name == name)
        self._allocate(of, it, {})

    def _serve(
        self, socket: Path, method: str, answer: Any
    ) -> tuple[grpc.Server, concurrent.futures.Executor]:
        service, _, name = method[1:].partition("/")
        pool = concurrent.futures.ThreadPoolExecutor(8)
        server = grpc.server(pool)
        handlers = {name: grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        return server, pool

    # --- plugins ----------------------------------------------------------------------------

    def _register(self, request: bytes, context: Any) -> bytes:
        read = wire.Message(request)
        if read.text(1) != messages.VERSION or "/" not in read.text(3):
            context.abort(grpc.StatusCode.UNKNOWN, "bad registration")
        channel = grpc.insecure_channel(
            f"unix:{self.folder / read.text(2)}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        endpoint = Endpoint(channel)
        endpoint.options = wire.Message(endpoint.call("GetDevicePluginOptions", b""))
        with self.changed:
            self.endpoints[read.text(3)] = endpoint
        threading.Thread(target=self._listen, args=(read.text(3), endpoint), daemon=True).start()
        return b""

    def _listen(self, resource: str, endpoint: Endpoint) -> None:
        assert endpoint.channel is not None
        devices, changed = self.devices, self.changed  # of this life
        with contextlib.suppress(grpc.RpcError, ValueError):  # it is closed
            watch = endpoint.channel.unary_stream(f"/{messages.SERVICE}/ListAndWatch")
            endpoint.stream = watch(b"")
            for content in endpoint.stream:
                with changed:
                    devices[resource] = _read_listing(content)
                    self.listings.append((resource, len(content)))
                    if any(devices[resource].values()):
                        self.ever_healthy.add(resource)
                    if devices is self.devices:
                        self.write()
                    changed.notify_all()
        with changed:
            endpoint.channel.close()
            if self.endpoints.get(resource) is endpoint:
                endpoint.channel = None
                devices[resource] = dict.fromkeys(devices.get(resource, {}), False)
            changed.notify_all()

    def until(self, true: Any) -> None:
        """Wait for something to be *true* of what plugins have said."""
        end = time.monotonic() + SECONDS
        with self.changed:
            while not true():
                assert self.changed.wait(end - time.monotonic()), "it did not come"

    def healthy(self, resource: str) -> frozenset[str]:
        """Return the ids that a plugin offers."""
        return frozenset(it for it, well in self.devices.get(resource, {}).items() if well)

    def until_offered(self, resources: tuple[str, str] = (VCORE, VMEMORY)) -> None:
        """Wait until both resources are there."""
        self.until(lambda: all(map(self.healthy, resources)))

    # --- pods -------------------------------------------------------------------------------

    def admit(self, new: Pod) -> Pod:
        """Give a pod its ids, container by container; AdmissionError if it cannot have them."""
        reusable: dict[str, set[str]] = {}
        self.pods[new.uid] = new
        try:
            for it in sorted(new.containers, key=lambda it: not (it.init or it.native)):
                self._allocate(new, it, reusable)
        except (StartError, grpc.RpcError) as exc:
            del self.pods[new.uid]
            raise AdmissionError(_words(exc)) from exc
        return new

    def _allocate(self, new: Pod, it: Container, reusable: dict[str, set[str]]) -> None:
        limits = list(it.limits.items())
        self.random.shuffle(limits)
        self._take_back()
        for resource, needed in limits:
            again = reusable.setdefault(resource, set())
            if not needed:
                continue  # as if it were not there
            ids = self._choose(resource, needed, again)
            answer = self.endpoints[resource].call("Allocate", wire.encode({1: [{1: list(ids)}]}))
            self.held[new.uid, it.name, resource] = (ids, wire.Message(answer).parts(1)[0])
            if it.init:
                again |= ids
            else:
                again -= ids
        self.write()

    def _choose(self, resource: str, needed: int, again: set[str]) -> frozenset[str]:
        first = self.random.sample(sorted(again), min(needed, len(again)))
        in_use = {
            one for (_, _, name), (ids, _) in self.held.items() if name == resource for one in ids
        }
        free = sorted(self.healthy(resource) - in_use - set(first))
        lack = needed - len(first)
        if lack > len(free):
            raise StartError(f"requested number of devices unavailable for {resource}")
        if not lack:
            return frozenset(first)
        if resource in self.insists:
            return self.insists.pop(resource)
        choice = {1: free + first, 2: first, 3: needed}
        answer = self.endpoints[resource].call(
            "GetPreferredAllocation", wire.encode({1: [choice]})
        )
        wanted = [one for one in wire.Message(answer).messages(1)[0].texts(1) if one in free]
        others = [one for one in free if one not in wanted]
        self.random.shuffle(others)
        return frozenset(first + (wanted + others)[:lack])

    def start_container(self, of: Pod, name: str) -> messages.Answer:
        """Start a container, or start it again; return what it gets. StartError if it does not."""
        (it,) = (it for it in of.containers if it.name == name)
        limits = list(it.limits)
        self.random.shuffle(limits)
        for resource in limits:
            endpoint = self.endpoints.get(resource)
            if endpoint is None:
                raise StartError("endpoint not found in cache")
            if endpoint.options is None or not endpoint.options.number(1):
                continue  # it has not registered since kubelet's start
            if (of.uid, name, resource) not in self.held:  # it asks for none
                raise StartError(f"no devices found allocated in local cache for {resource}")
            ids, _ = self.held[of.uid, name, resource]
            try:
                endpoint.call("PreStartContainer", wire.encode({1: list(ids)}))
            except grpc.RpcError as exc:
                raise StartError(_words(exc)) from exc
        answers = [messages.Answer.decode(self.held[of.uid, name, it][1]) for it in it.limits]
        return messages.Answer(
            {key: value for it in answers for key, value in it.annotations.items()},
            tuple(device for it in answers for device in it.cdi_devices),
            {key: value for it in answers for key, value in it.variables.items()},
            tuple(mount for it in answers for mount in it.mounts),
            tuple(node for it in answers for node in it.nodes),
        )

    def remove(self, old: Pod) -> None:
        """Let a pod be over; its ids are taken back when somebody asks for some."""
        del self.pods[old.uid]

    def ids(self, of: Pod, name: str, resource: str) -> frozenset[str]:
        """Return the ids that a container holds."""
        return self.held[of.uid, name, resource][0]

    def write(self) -> None:
        """Write the checkpoint, as a new file."""
        with self._writing:  # who comes later knows more
            self._write()

    def _write(self) -> None:
        entries = [
            {
                "PodUID": uid,
                "ContainerName": name,
                "ResourceName": resource,
                "DeviceIDs": {"-1": sorted(ids)},
                "AllocResp": base64.b64encode(answer).decode(),
            }
            for (uid, name, resource), (ids, answer) in list(self.held.items())
        ]
        registered = {it: sorted(self.healthy(it)) for it in self.devices}
        data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
        draft = self.folder / f"draft-{threading.get_ident()}"
        draft.write_text(json.dumps({"Data": data, "Checksum": 0}))
        draft.replace(self.folder / state.FILE)

    def _take_back(self) -> None:
        self.held = {key: it for key, it in self.held.items() if key[0] in self.pods}

    # --- PodResources -----------------------------------------------------------------------

    def _list(self, _request: bytes, context: Any) -> bytes:
        self.lists += 1
        if self.refuse_lists:
            self.refuse_lists -= 1
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._take_back()
        listed = [
            {1: it.name, 2: it.namespace, 3: list(self._listed(it))} for it in self.pods.values()
        ]
        return wire.encode({1: self.change_list(listed)})

    def _listed(self, it: Pod) -> Iterator[dict[int, Any]]:
        for one in it.containers:
            if not one.init:
                devices = [
                    _entry(resource, each)
                    for resource in one.limits
                    for each in self.held.get((it.uid, one.name, resource), (frozenset(), b""))[0]
                ]
                self.random.shuffle(devices)
                yield {1: one.name, 2: devices}


@functools.cache
def _entry(resource: str, device: str) -> bytes:
    """Return what PodResources lists of an id: an entry for each."""
    return wire.encode({1: resource, 2: device})


def _read_checkpoint(file: Path) -> Any:
    """Return what kubelet reads at its start; ValueError for a wrong checksum."""
    document = json.loads(file.read_bytes())
    if document["Checksum"]:
        raise ValueError("checkpoint is corrupted")
    return document["Data"]


def _words(exc: Exception) -> str:
    return str(exc.details() if isinstance(exc, grpc.RpcError) else exc)


def _read_listing(content: bytes) -> dict[str, bool]:
    """Return the ids of a ListAndWatchResponse, and whether each is healthy."""
    return {it.text(1): it.text(2) == "Healthy" for it in wire.Message(content).messages(1)}
