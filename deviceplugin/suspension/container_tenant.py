"""A container whose processes are suspended, as the operation of pyvgpu.run sees it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors, names, region

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyvgpu import device
    from pyvgpu.deviceplugin.containers.store import GrantStore
    from pyvgpu.deviceplugin.grants import Grant


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerTenant:
    """One container with a grant of shares."""

    store: GrantStore
    grant: Grant
    devices: tuple[device.Device, ...]

    @property
    def folder(self) -> Path:
        """The folder of its region."""
        return self.store.path(self.grant.id)

    @property
    def must_show_cgroups(self) -> bool:
        """Yes: its memory limit is that of its cgroup."""
        return True

    @property
    def name(self) -> str:
        """The name of the container in its pod."""
        return self.grant.owner.container if self.grant.owner else self.grant.id

    def read(self) -> region.Suspension:
        """Return what its quota says."""
        return self.store.suspension(self.grant.id)

    def mark(self, suspension_now: region.Suspension) -> None:
        """Write it into its quota."""
        self.store.mark(self.grant.id, suspension_now)

    def readmit(self) -> None:
        """Do nothing: the reservation of a container is never released."""

    def held_bytes(self) -> int:
        """Return the device memory in its ledger, which stays the same while it is suspended."""
        try:
            with self.store.opened(self.grant.id, names.USAGE_FILE) as file:
                _, figures = region.read_figures(file, len(self.devices))
        except (OSError, errors.DataError):
            return 0
        return sum(figure.charged for figure in figures)


def of(store: GrantStore, grant: Grant, devices: Mapping[str, device.Device]) -> ContainerTenant:
    """Return the container of *grant*; UnavailableError if it can never be suspended."""
    name = grant.owner.container if grant.owner else grant.id
    if grant.whole:
        raise errors.UnavailableError(
            f"container {name}: has whole devices, which it uses without the shim; only "
            "containers with shares can be suspended"
        )
    if grant.claim is not None:
        raise errors.UnavailableError(
            f"claim {grant.claim.name}: pods with a ResourceClaim cannot be suspended, since "
            "others may use the same claim"
        )
    missing = [share.uuid for share in grant.shares if share.uuid not in devices]
    if missing:
        raise errors.UnavailableError(f"container {name}: its device {missing[0]} is missing")
    return ContainerTenant(store, grant, tuple(devices[share.uuid] for share in grant.shares))
