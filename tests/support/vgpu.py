"""Gives pods of the ``make e2e`` cluster vGPUs of a simulated machine, without a device plugin.

Grants, folders and CDI specifications are the node agent's; this module writes into the node and
the pods what the agent would pass to kubelet: the node's resources and a container's edits.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import granted
import rig

from pyvgpu import region, shim
from pyvgpu.deviceplugin.containers import store
from pyvgpu.kube import apiserver
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "localhost/training:1"
VCORE = "pyvgpu.io/vcore"
NODE = "node-1"
TENANT = "/tenant"
IMAGE_MAKER = Path(__file__).parents[2] / "deploy/image.py"
CLUSTER = Path(__file__).parents[1] / "e2e/cluster/cluster"


class Grants:
    """One grant per index of an indexed Job, all on one device."""

    def __init__(self, folder: Path, count: int, vcore: int, size: int) -> None:
        machine = simulator.open_machine("h100", folder / "machines")
        driver = granted.driver_of(machine, folder / "driver")
        self._places = store.GrantStore(folder / "grants", folder / "cdi")
        self._vcore, self._environment = vcore, driver.environment
        share = granted.share_of(machine, vcore=vcore, size=size)
        self._grants = [granted.grant_of(share, number=index) for index in range(count)]
        for grant in self._grants:
            self._places.make(grant, driver)

    def usage(self, index: int) -> region.Usage:
        """Return the usage of a grant's container."""
        with (self._folder(index) / "usage").open("rb") as file:
            return region.read_usage(file.fileno())

    def give(self, container: dict[str, Any]) -> list[dict[str, Any]]:
        """Add the grant of its pod's index to *container*; return the pod volumes it needs."""
        edits = granted.edits_of(self._places.specification(self._grants[0].id))
        volumes, mounts = [], []
        for number, mount in enumerate(edits["mounts"]):
            path = Path(mount["hostPath"])
            made = {"name": f"vgpu-{number}", "mountPath": mount["containerPath"]}
            if path.is_relative_to(self._folder(0)):
                below = path.relative_to(self._folder(0))
                prefix = self._grants[0].id[:-1]
                made["subPathExpr"] = str(Path(f"{prefix}$(JOB_COMPLETION_INDEX)") / below)
                path = self._folder(0).parent
            mounts.append({**made, "readOnly": "ro" in mount["options"]})
            volumes.append({"name": made["name"], "hostPath": {"path": str(path)}})
        container["volumeMounts"] = [*container.get("volumeMounts", ()), *mounts]
        container["env"] = [{"name": k, "value": v} for k, v in self._environment.items()]
        container["resources"] = {"limits": {VCORE: str(self._vcore)}}
        return volumes

    def close(self) -> None:
        """Release the grants' files."""
        self._places.close()

    def _folder(self, index: int) -> Path:
        return self._places.path(self._grants[index].id)


def make_image(folder: Path) -> None:
    """Build an image of the demo's training program, and load it into the node."""
    programs = [shim.tenant_program(), *shim.simulator_libraries().glob("lib*.so.*")]
    listed = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True).stdout
    words = {word for word in listed.split() if word.startswith("/") and Path(word).is_file()}
    files = {word: word for word in words - set(map(str, programs))}
    files |= {"/bin/busybox": "/bin/busybox", str(shim.tenant_program()): TENANT}
    options = [f"--file={source}={target}" for source, target in sorted(files.items())]
    archive = folder / "training.tar"
    link = "--link=/bin/sh=busybox"
    subprocess.run([sys.executable, IMAGE_MAKER, archive, IMAGE, *options, link], check=True)
    subprocess.run([CLUSTER, "image", archive], check=True)


@contextlib.contextmanager
def on_the_node(vcore: int) -> Iterator[None]:
    """Make *vcore* allocatable on the node during the block, for kube-scheduler to count."""
    api = rig.as_admin().server
    path = f"/api/v1/nodes/{NODE}/status"

    def write(value: str | None) -> None:
        both = {"capacity": {VCORE: value}, "allocatable": {VCORE: value}}
        api.call("PATCH", path, body={"status": both}, kind=apiserver.MERGE_PATCH)

    write(str(vcore))
    try:
        yield
    finally:
        write(None)
