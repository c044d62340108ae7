"""Options that say where the things of a node are, of the commands that serve its kubelet."""

from __future__ import annotations

from pyvgpu.cli import table

OPTIONS = (
    table.Option(
        "--device-plugin-path",
        "DIR",
        "plugins",
        "where kubelet meets device plugins",
        table.path,
        "/var/lib/kubelet/device-plugins",
    ),
    table.Option(
        "--pod-resources",
        "SOCKET",
        "pod_resources",
        "where kubelet says which pod has which devices",
        table.path,
        "/var/lib/kubelet/pod-resources/kubelet.sock",
    ),
    table.Option(
        "--cdi",
        "DIR",
        "specifications",
        "where the container runtime looks for CDI specifications",
        table.path,
        "/var/run/cdi",
    ),
    table.Option(
        "--driver-root",
        "DIR",
        "driver_root",
        "where the root of the system that has the driver is mounted",
        table.path,
        "/",
    ),
)
