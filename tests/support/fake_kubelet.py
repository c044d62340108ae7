"""Fake kubelet for device plugins: real sockets and messages, kubelet's handling of device ids.

It behaves as kubelet 1.36.3 does (pkg/kubelet/cm/devicemanager): it takes a random subset of the
free ids unless the plugin prefers some; reuses an init container's ids for later containers;
reclaims ids of removed pods at the next allocation; calls PreStartContainer before each start.
After a restart it knows the ids from the checkpoint, but a plugin's options only once the plugin
has registered again; until then it silently skips PreStartContainer.
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import dataclasses
import json
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import grpc
from waiting import PROMPT

from pyvgpu import names
from pyvgpu._api import device_plugin_pb2 as api
from pyvgpu._api import device_plugin_pb2_grpc as api_grpc
from pyvgpu._api import pod_resources_pb2 as pod_api
from pyvgpu._api import pod_resources_pb2_grpc as pod_api_grpc
from pyvgpu.deviceplugin.kubelet import checkpoint_file, plugin_messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VCORE, VMEMORY = names.VCORE_RESOURCE, names.VMEMORY_RESOURCE
SECONDS = PROMPT


class AdmissionError(Exception):
    """kubelet fails a pod with UnexpectedAdmissionError."""


class StartError(Exception):
    """A container does not start now; kubelet would retry."""


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
    """A pod; its uid is unique, its name need not be."""

    name: str
    containers: tuple[Container, ...]
    namespace: str = "default"
    uid: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))


def pod(name: str, *containers: Container) -> Pod:
    return Pod(name, containers)


@dataclasses.dataclass
class Endpoint:
    """A registered plugin; one known only from before a restart has no channel."""

    channel: grpc.Channel | None = None
    options: api.DevicePluginOptions | None = None
    stream: Any = None

    def call(self, method: str, request: Any) -> Any:
        if self.channel is None:
            raise StartError("endpoint has been stopped")
        return getattr(api_grpc.DevicePluginStub(self.channel), method)(request, timeout=SECONDS)


class FakeKubelet:
    """One node's kubelet, which tests :meth:`start` and :meth:`stop` any number of times."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "device-plugins"
        self.pod_resources = folder / "pod-resources" / "kubelet.sock"
        self.pod_resources.parent.mkdir(parents=True)
        self.folder.mkdir()
        self.random = random.Random(7)
        self.pods: dict[str, Pod] = {}
        self.held: dict[tuple[str, str, str], tuple[frozenset[str], bytes]] = {}
        self.lists = 0  # calls of PodResources List
        self.refuse_lists = 0  # how many of the next calls exceed the rate limit
        self.change_list = lambda listed: listed  # lets a test falsify the list
        self.insists: dict[str, frozenset[str]] = {}  # by resource: the ids allocated next
        self.listings: list[tuple[str, int]] = []  # ListAndWatch messages: resource, bytes
        self.ever_healthy: set[str] = set()  # resources that ever had a healthy id
        self._writing = threading.Lock()
        self._listeners: list[tuple[threading.Thread, grpc.Channel]] = []
        self._reset()

    def _reset(self) -> None:
        self.changed = threading.Condition()
        self.endpoints: dict[str, Endpoint] = {}
        self.devices: dict[str, dict[str, bool]] = {}  # by resource: is the id healthy?

    # --- start and stop ---------------------------------------------------------------------

    def start(self) -> FakeKubelet:
        """Start, with the state in the checkpoint, as after a crash."""
        self._reset()
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        with contextlib.suppress(FileNotFoundError, ValueError):
            registered = _read_checkpoint(self.folder / checkpoint_file.FILE)
            self.endpoints = {device: Endpoint() for device in registered["RegisteredDevices"]}
            self.devices = {device: {} for device in registered["RegisteredDevices"]}
        self._servers = [
            serve(
                self.folder / "kubelet.sock",
                lambda server: api_grpc.add_RegistrationServicer_to_server(
                    _Registration(self), server
                ),
            ),
            serve(
                self.pod_resources,
                lambda made: pod_api_grpc.add_PodResourcesListerServicer_to_server(
                    _PodResources(self), made
                ),
            ),
        ]
        return self

    def stop(self) -> None:
        """Stop; the registration socket stays on disk."""
        for server, pool in self._servers:
            server.stop(None).wait()
            pool.shutdown()
        for listener, channel in self._listeners:
            channel.close()
            listener.join()  # by then it has written what it received
        self._listeners.clear()

    def lose_checkpoint(self, content: bytes | None = None) -> None:
        """Lose all allocations while stopped: delete the checkpoint, or give it that *content*.

        Running containers keep running, and kubelet allocates nothing for them at its next start.
        """
        self.held.clear()
        file = self.folder / checkpoint_file.FILE
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)

    def allocate_again(self, of: Pod, name: str) -> None:
        """Allocate for a container that does not run at kubelet's start, as kubelet does."""
        (it,) = (candidate for candidate in of.containers if candidate.name == name)
        self._allocate(of, it, {})

    # --- plugins ----------------------------------------------------------------------------

    def register(self, request: api.RegisterRequest, context: Any) -> api.Empty:
        """Register a plugin, or refuse it."""
        resource = request.resource_name
        if request.version != "v1beta1" or "/" not in resource:
            context.abort(grpc.StatusCode.UNKNOWN, "bad registration")
        channel = grpc.insecure_channel(
            f"unix:{self.folder / request.endpoint}",
            options=[("grpc.use_local_subchannel_pool", 1)],
        )
        endpoint = Endpoint(channel)
        endpoint.options = endpoint.call("GetDevicePluginOptions", api.Empty())
        with self.changed:
            self.endpoints[resource] = endpoint
        listener = threading.Thread(target=self._listen, args=(resource, endpoint), daemon=True)
        self._listeners.append((listener, channel))
        listener.start()
        return api.Empty()

    def _listen(self, resource: str, endpoint: Endpoint) -> None:
        assert endpoint.channel is not None
        devices, changed = self.devices, self.changed  # of this kubelet process
        with contextlib.suppress(grpc.RpcError, ValueError):  # the channel is closed
            endpoint.stream = api_grpc.DevicePluginStub(endpoint.channel).ListAndWatch(api.Empty())
            for listing in endpoint.stream:
                with changed:
                    devices[resource] = {
                        device.id: device.health == "Healthy" for device in listing.devices
                    }
                    self.listings.append((resource, listing.ByteSize()))
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
        """Wait until *true* returns a true value, checked at each message of a plugin."""
        end = time.monotonic() + SECONDS
        with self.changed:
            while not true():
                assert self.changed.wait(end - time.monotonic()), "it did not come"

    def healthy(self, resource: str) -> frozenset[str]:
        """Return the healthy ids of a resource."""
        return frozenset(
            device_id for device_id, well in self.devices.get(resource, {}).items() if well
        )

    def until_offered(self, resources: tuple[str, str] = (VCORE, VMEMORY)) -> None:
        """Wait until both resources have healthy ids."""
        self.until(lambda: all(map(self.healthy, resources)))

    # --- pods -------------------------------------------------------------------------------

    def admit(self, new: Pod) -> Pod:
        """Allocate a pod's ids, container by container; AdmissionError if that fails."""
        reusable: dict[str, set[str]] = {}
        self.pods[new.uid] = new
        try:
            for own in sorted(
                new.containers, key=lambda member: not (member.init or member.native)
            ):
                self._allocate(new, own, reusable)
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
                continue  # a limit of 0 means none
            ids = self._choose(resource, needed, again)
            asked = api.ContainerAllocateRequest(device_ids=ids)
            request = api.AllocateRequest(container_requests=[asked])
            (answer,) = self.endpoints[resource].call("Allocate", request).container_responses
            self.held[new.uid, it.name, resource] = (ids, answer.SerializeToString())
            if it.init:
                again |= ids
            else:
                again -= ids
        self.write()

    def _choose(self, resource: str, needed: int, again: set[str]) -> frozenset[str]:
        first = self.random.sample(sorted(again), min(needed, len(again)))
        in_use = {
            one
            for (_, _, name), (ids, _) in list(self.held.items())
            if name == resource
            for one in ids
        }
        free = sorted(self.healthy(resource) - in_use - set(first))
        lack = needed - len(first)
        if lack > len(free):
            raise StartError(f"requested number of devices unavailable for {resource}")
        if not lack:
            return frozenset(first)
        if resource in self.insists:
            return self.insists.pop(resource)
        request = api.PreferredAllocationRequest()
        request.container_requests.add(
            available_device_ids=free + first,
            must_include_device_ids=first,
            allocation_size=needed,
        )
        answer = self.endpoints[resource].call("GetPreferredAllocation", request)
        wanted = [one for one in answer.container_responses[0].device_ids if one in free]
        others = [one for one in free if one not in wanted]
        self.random.shuffle(others)
        return frozenset(first + (wanted + others)[:lack])

    def start_container(self, of: Pod, name: str) -> plugin_messages.AllocateResponse:
        """Start or restart a container; return its merged Allocate answers, or StartError."""
        (it,) = (candidate for candidate in of.containers if candidate.name == name)
        limits = list(it.limits)
        self.random.shuffle(limits)
        for resource in limits:
            endpoint = self.endpoints.get(resource)
            if endpoint is None:
                raise StartError("endpoint not found in cache")
            if endpoint.options is None or not endpoint.options.pre_start_required:
                continue  # the plugin has not registered since kubelet's start
            if (of.uid, name, resource) not in self.held:  # the limit is 0
                raise StartError(f"no devices found allocated in local cache for {resource}")
            ids, _ = self.held[of.uid, name, resource]
            try:
                request = api.PreStartContainerRequest(device_ids=ids)
                endpoint.call("PreStartContainer", request)
            except grpc.RpcError as exc:
                raise StartError(_words(exc)) from exc
        found = [read_answer(self.held[of.uid, name, limit][1]) for limit in it.limits]
        return plugin_messages.AllocateResponse(
            {key: value for answer in found for key, value in answer.annotations.items()},
            tuple(device for answer in found for device in answer.cdi_devices),
            {key: value for answer in found for key, value in answer.variables.items()},
            tuple(mount for answer in found for mount in answer.mounts),
            tuple(node for answer in found for node in answer.nodes),
        )

    def remove(self, old: Pod) -> None:
        """Remove a pod; its ids are reclaimed at the next allocation or list."""
        del self.pods[old.uid]

    def ids(self, of: Pod, name: str, resource: str) -> frozenset[str]:
        """Return the ids that a container holds."""
        return self.held[of.uid, name, resource][0]

    def write(self) -> None:
        """Write the checkpoint, as a new file."""
        with self._writing:  # the last writer has the newest state
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
        registered = {device: sorted(self.healthy(device)) for device in list(self.devices)}
        data = {"PodDeviceEntries": entries, "RegisteredDevices": registered}
        draft = self.folder / f"draft-{threading.get_ident()}"
        draft.write_text(json.dumps({"Data": data, "Checksum": 0}))
        draft.replace(self.folder / checkpoint_file.FILE)

    def _take_back(self) -> None:
        for key in list(self.held):  # in place: List is called while containers are allocated
            if key[0] not in self.pods:
                self.held.pop(key, None)

    # --- PodResources -----------------------------------------------------------------------

    def list(self, context: Any) -> pod_api.ListPodResourcesResponse:
        """Answer PodResources List: the device ids of each container."""
        self.lists += 1
        if self.refuse_lists:
            self.refuse_lists -= 1
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._take_back()
        listed = self.change_list([self._listed(admitted) for admitted in self.pods.values()])
        return pod_api.ListPodResourcesResponse(
            pod_resources=[message.SerializeToString() for message in listed]
        )

    def _listed(self, pod: Pod) -> pod_api.PodResources:
        listed = pod_api.PodResources(name=pod.name, namespace=pod.namespace)
        for one in pod.containers:
            if not one.init:
                devices = [
                    pod_api.ContainerDevices(resource_name=resource, device_ids=[each])
                    for resource in one.limits
                    for each in self.held.get((pod.uid, one.name, resource), (frozenset(), b""))[0]
                ]
                self.random.shuffle(devices)
                listed.containers.add(name=one.name, devices=devices)
        return listed


class _Registration(api_grpc.RegistrationServicer):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    def Register(self, request: api.RegisterRequest, context: Any) -> api.Empty:
        return self._kubelet.register(request, context)


class _PodResources(pod_api_grpc.PodResourcesListerServicer):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self._kubelet = kubelet

    def List(self, _: Any, context: Any) -> pod_api.ListPodResourcesResponse:
        return self._kubelet.list(context)


def serve(
    socket: Path, add: Callable[[grpc.Server], None]
) -> tuple[grpc.Server, concurrent.futures.Executor]:
    """Serve at *socket* the servicers that *add* registers."""
    pool = concurrent.futures.ThreadPoolExecutor(8)
    server = grpc.server(pool)
    add(server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server, pool


def read_answer(content: bytes) -> plugin_messages.AllocateResponse:
    """Parse the Allocate answer that kubelet keeps for a container."""
    read = api.ContainerAllocateResponse.FromString(content)
    assert all(device.permissions == "rw" for device in read.devices)
    return plugin_messages.AllocateResponse(
        dict(read.annotations),
        tuple(device.name for device in read.cdi_devices),
        dict(read.envs),
        tuple(
            plugin_messages.Mount(mount.container_path, mount.host_path, mount.read_only)
            for mount in read.mounts
        ),
        tuple((device.container_path, device.host_path) for device in read.devices),
    )


def _read_checkpoint(file: Path) -> Any:
    """Return the checkpoint's data as kubelet reads it; ValueError for a wrong checksum."""
    document = json.loads(file.read_bytes())
    if document["Checksum"]:
        raise ValueError("checkpoint is corrupted")
    return document["Data"]


def _words(exc: Exception) -> str:
    return str(exc.details() if isinstance(exc, grpc.RpcError) else exc)
