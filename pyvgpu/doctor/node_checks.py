"""Checks of the requirements and health of a node's agent, on the node or in its container."""

from __future__ import annotations

import dataclasses
import functools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, names, shim
from pyvgpu.deviceplugin.devices import simulated_devices
from pyvgpu.doctor import check_results, machine_checks
from pyvgpu.doctor.check_results import CheckResult, CheckState, Finding
from pyvgpu.http import endpoints
from pyvgpu.volumes import installation, mirror_plan
from pyvgpu.volumes.node_mirror import NodeMirror as Mirror

if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVER = "driver"  # the mirror, in the agent's state folder
_SECONDS = 5
_MOST = 4096  # bytes of a response
_OF_THE_MACHINE = ("system", "shim", "shim's glibc")  # machine checks that apply here, too
_START = "start pyvgpu device-plugin (helm install pyvgpu, docs/agent-install.md)"


@dataclasses.dataclass(frozen=True, slots=True)
class NodePaths:
    """Paths and addresses on a node."""

    state: Path = Path("/var/lib/pyvgpu")
    kubelet: Path = Path("/var/lib/kubelet")
    specifications: Path = Path("/var/run/cdi")
    agent: str = f"{endpoints.LOOPBACK}:5678"  # its HTTP address


def examine(node: NodePaths, environment: Mapping[str, str]) -> tuple[CheckResult, ...]:
    """Check all requirements of the agent, and query its health."""
    tree = Mirror(node.state / DRIVER, shim.shim_library()).current()
    libraries = None if tree is None else tree / installation.EXCLUSIVE / mirror_plan.LIB64
    environment = {**simulated_devices.environment(node.state), **environment}
    scene = machine_checks.CheckedMachine(environment, libraries)
    by_name = {check.name: check for check in machine_checks.CHECKS}
    plugins = node.kubelet / "device-plugins" / "kubelet.sock"
    resources = node.kubelet / "pod-resources" / "kubelet.sock"
    return (
        *(
            check_results.row(name, functools.partial(by_name[name].run, scene))
            for name in _OF_THE_MACHINE
        ),
        check_results.row("mirror of the driver", lambda: _check_mirror(node, tree, scene)),
        check_results.row("devices", lambda: _check_devices(tree, scene, environment)),
        check_results.row(
            "kubelet", lambda: _check_socket(plugins, "where device plugins register")
        ),
        check_results.row("pod resources", lambda: _check_socket(resources, "PodResources API")),
        check_results.row("CDI", lambda: _check_specifications(node.specifications)),
        check_results.row("agent", lambda: _check_agent(node.agent)),
    )


def _check_mirror(
    node: NodePaths, tree: Path | None, scene: machine_checks.CheckedMachine
) -> Finding:
    if tree is None:
        return Finding(
            CheckState.MISSING,
            f"none in {node.state / DRIVER}",
            f"{_START}; its log names the driver that it finds below --driver-root",
        )
    return Finding(CheckState.OK, f"{scene.driver().release} in {tree}")


def _check_devices(
    tree: Path | None, scene: machine_checks.CheckedMachine, environment: Mapping[str, str]
) -> Finding:
    if tree is None:
        return Finding(CheckState.MISSING, "no driver to query")
    found = machine_checks.check_devices(scene)
    if found.state is CheckState.OK or names.SIMULATED_MACHINE_VARIABLE in environment:
        return found
    return dataclasses.replace(
        found,
        remedy="the kernel module must be loaded on the node (check with nvidia-smi there), and "
        "this container needs the resource pyvgpu.io/control of pyvgpu control-nodes",
    )


def _check_socket(path: Path, what: str) -> Finding:
    try:
        found = stat.S_ISSOCK(path.stat().st_mode)
    except OSError as exc:
        return Finding(
            CheckState.MISSING,
            f"{path}: {exc.strerror}",
            f"kubelet has a socket there ({what}): mount its folder, or name kubelet's root "
            "with --kubelet",
        )
    if not found:
        return Finding(
            CheckState.MISSING, f"{path}: is not a socket", "name kubelet's root: --kubelet"
        )
    return Finding(CheckState.OK, str(path))


def _check_specifications(folder: Path) -> Finding:
    if folder.is_dir() and os.access(folder, os.W_OK):
        return Finding(CheckState.OK, str(folder))
    return Finding(
        CheckState.LIMITED,
        f"{folder}: is not a writable folder",
        "mount the folder that the container runtime reads (enable_cdi); without CDI the agent "
        "needs --no-require-cdi, and containers see the nodes of all devices",
    )


def _check_agent(address: str) -> Finding:
    where = endpoints.read_address(address, "--agent")
    try:
        answer = endpoints.ask(where, "/readyz", _SECONDS, _MOST)
    except errors.UnavailableError as exc:
        return Finding(CheckState.MISSING, f"no answer at {address}: {exc}", _START)
    said = answer.content.decode("utf-8", "replace").strip()
    if answer.code == 200 and said == endpoints.OK:
        return Finding(CheckState.OK, f"ready, answers at {address}")
    if answer.code == 200:
        return Finding(
            CheckState.LIMITED,
            f"ready, answers at {address}; devices: {said}",
            "remove the other device plugin or this agent from the node (agent.nodeSelector); "
            "--beside-nvidia offers the devices all the same, and each may be allocated twice",
        )
    return Finding(
        CheckState.MISSING,
        f"not ready: {said}",
        "its log says more (kubectl -n pyvgpu-agent logs)",
    )
