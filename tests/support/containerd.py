"""Runs Debian's containerd with one image, and containers in it through CRI as kubelet does."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import subprocess
import tarfile
import time
from typing import TYPE_CHECKING, Any

import debian
import grpc
import pytest
import rights

from pyvgpu._api import cri_pb2 as api
from pyvgpu._api import cri_pb2_grpc as api_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_IMAGE = "localhost/busybox:1"
_SECONDS = 60
_CONFIGURATION = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
address = "{folder}/socket"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
disable_tcp_service = true
restrict_oom_score_adj = true
enable_cdi = true
cdi_spec_dirs = ["{folder}/cdi"]
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"""


class RefusedError(Exception):
    """containerd refused a CRI request."""


@dataclasses.dataclass(frozen=True, slots=True)
class Containerd:
    """A CRI connection, and a pod sandbox for containers."""

    channel: grpc.Channel
    specifications: Path  # the CDI directory
    pod: str
    configuration: api.PodSandboxConfig

    @contextlib.contextmanager
    def container(self, *devices: str) -> Iterator[str]:
        """Run a container with these CDI *devices*; yield its ID."""
        wanted = api.ContainerConfig(
            metadata=api.ContainerMetadata(name=f"with {' '.join(devices)}"),
            image=api.ImageSpec(image=_IMAGE),
            command=["/bin/sleep", "600"],
            cdi_devices=[api.CDIDevice(name=name) for name in devices],
        )
        request = api.CreateContainerRequest(
            pod_sandbox_id=self.pod, config=wanted, sandbox_config=self.configuration
        )
        identity = _call(self.channel, "CreateContainer", request).container_id
        try:
            request = api.StartContainerRequest(container_id=identity)
            _call(self.channel, "StartContainer", request)
            yield identity
        finally:
            request = api.RemoveContainerRequest(container_id=identity)
            _call(self.channel, "RemoveContainer", request)

    def execute(self, container: str, *command: str) -> str:
        """Return the stdout and stderr of *command* in a container."""
        request = api.ExecSyncRequest(container_id=container, cmd=command, timeout=_SECONDS)
        done = _call(self.channel, "ExecSync", request)
        return (done.stdout + done.stderr).decode(errors="replace")


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Containerd]:
    """Run containerd with its files in *folder*, and a pod sandbox."""
    server = debian.unpacked("trixie", "containerd", component="main")
    # From an older release, so that they run with an older C library.
    others = debian.unpacked("bookworm", "runc", "libseccomp2", "busybox-static", component="main")
    _write_image(others / "bin/busybox", folder / "image.tar")
    (folder / "cdi").mkdir()
    (folder / "configuration.toml").write_text(_CONFIGURATION.format(folder=folder, image=_IMAGE))
    variables = {
        "PATH": f"{server}/usr/bin:{others}/usr/sbin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(others / "usr/lib/x86_64-linux-gnu"),
    }
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            ["containerd", "--config", folder / "configuration.toml"],
            env=variables,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            _wait_for(folder / "socket", process)
            _import(folder, variables)
            with grpc.insecure_channel(f"unix:{folder}/socket") as channel:
                yield from _with_pod(channel, folder)
        finally:
            process.terminate()


def _wait_for(socket: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _SECONDS
    while not socket.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)


def _import(folder: Path, variables: dict[str, str]) -> None:
    address = ["ctr", "--address", folder / "socket", "--namespace", "k8s.io"]
    subprocess.run(
        [*address, "images", "import", "--snapshotter", "native", folder / "image.tar"],
        env=variables,
        check=True,
        capture_output=True,
        timeout=_SECONDS,
    )


def _with_pod(channel: grpc.Channel, folder: Path) -> Iterator[Containerd]:
    # Host networking: no CNI set-up needed.
    of_the_node = api.LinuxSandboxSecurityContext(
        namespace_options=api.NamespaceOption(network=api.NODE)
    )
    configuration = api.PodSandboxConfig(
        metadata=api.PodSandboxMetadata(name="pod", uid="uid", namespace="tests"),
        log_directory=str(folder),
        linux=api.LinuxPodSandboxConfig(security_context=of_the_node),
    )
    try:
        request = api.RunPodSandboxRequest(config=configuration)
        pod = _call(channel, "RunPodSandbox", request).pod_sandbox_id
    except RefusedError as exc:
        pytest.skip(f"{rights.WANTING} containerd a pod: {exc}")
    try:
        yield Containerd(channel, folder / "cdi", pod, configuration)
    finally:
        _call(channel, "StopPodSandbox", api.StopPodSandboxRequest(pod_sandbox_id=pod))
        _call(channel, "RemovePodSandbox", api.RemovePodSandboxRequest(pod_sandbox_id=pod))


def _call(channel: grpc.Channel, method: str, request: Any) -> Any:
    """Call *method* and return the answer."""
    call = getattr(api_grpc.RuntimeServiceStub(channel), method)
    try:
        return call(request, timeout=_SECONDS, wait_for_ready=True)
    except grpc.RpcError as exc:
        raise RefusedError(f"{method}: {exc.details()}") from exc


def _write_image(shell: Path, archive: Path) -> None:
    """Write an image with a shell in it, as ``docker save`` does."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(shell, "bin/busybox")
        for name in ("sh", "env", "head", "ls", "sleep"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "600"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer.getvalue())}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [_IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for name, content in (
            ("config.json", json.dumps(configuration).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
