"""Options for paths on a node, shared by the commands that serve kubelet."""

from __future__ import annotations

from pyvgpu.cli import table

OPTIONS = (
    table.Option(
        "--device-plugin-path",
        "DIR",
        "plugins",
        "kubelet's folder of device plugin sockets",
        table.path,
        "/var/lib/kubelet/device-plugins",
    ),
    table.Option(
        "--pod-resources",
        "SOCKET",
        "pod_resources",
        "kubelet's PodResources socket, which lists the devices of pods",
        table.path,
        "/var/lib/kubelet/pod-resources/kubelet.sock",
    ),
    table.Option(
        "--cdi",
        "DIR",
        "specifications",
        "the container runtime's folder of CDI specifications",
        table.path,
        "/var/run/cdi",
    ),
    table.Option(
        "--driver-root",
        "DIR",
        "driver_root",
        "mount point of the root file system that has the driver",
        table.path,
        "/",
    ),
)
