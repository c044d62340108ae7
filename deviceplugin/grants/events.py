"""Events about a grant's pod or the node, as the agent reports them; see pod_events."""

from __future__ import annotations

import dataclasses
import enum


class Reason(enum.StrEnum):
    """The reason of an event, as `kubectl get events` shows it."""

    REFUSED = "VGPURefused"  # a container can never start here
    WAITS = "VGPUWaits"  # a container cannot start yet, such as while the devices are full
    RESIZED = "VGPUResized"  # a container's quota has changed
    NOT_RESIZED = "VGPUNotResized"  # the quota in the pod's annotations is not possible
    SUSPENDED = "VGPUSuspended"  # the pod's device memory was moved to host memory
    NOT_SUSPENDED = "VGPUNotSuspended"  # the pod cannot be suspended, and goes on
    RESUMED = "VGPUResumed"  # the pod's device memory was moved back
    NOT_RESUMED = "VGPUNotResumed"  # the pod cannot be resumed, and stays suspended
    LOST = "VGPUNotRestored"  # the driver cannot restore a container: its processes are killed
    DEVICE_UNHEALTHY = "VGPUDeviceUnhealthy"  # a device that the pod uses is unhealthy
    DEVICE_HEALTHY = "VGPUDeviceHealthy"  # the device is healthy again
    PROGRAMS_LOST = "VGPUProgramsLost"  # the MPS server of a device, and so its programs, ended
    SAME_DEVICE = "VGPUSameDevice"  # time slices of a container are of fewer devices than that
    BYPASSED = "VGPUQuotaBypassed"  # a process of the pod bypasses or exceeds its quota
    TAMPERED = "VGPUTampered"  # a container's ledger was changed by something other than the shim
    ENDED = "VGPUProcessEnded"  # the audit killed a process of the pod for exceeding its quota
    NOT_OFFERED = "VGPUNotOffered"  # of a node: another device plugin gives out its GPUs
    OFFERED = "VGPUOffered"  # of a node: no other device plugin gives them out any more
    NOT_CONFIGURED = "VGPUNotConfigured"  # of a node: its label selects no valid options


_NORMAL = frozenset(
    {
        Reason.RESIZED,
        Reason.SUSPENDED,
        Reason.RESUMED,
        Reason.DEVICE_HEALTHY,
        Reason.OFFERED,
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class GrantEvent:
    """An event for the user of a pod, or for the administrator of the node."""

    uid: str  # the pod's, or the node's
    namespace: str  # empty, as the name: not known
    name: str
    text: str
    reason: Reason = Reason.REFUSED
    evict: bool = False  # the pod, if something owns it
    of_node: bool = False  # else of a pod

    @property
    def kind(self) -> str:
        """Its type in the cluster."""
        return "Normal" if self.reason in _NORMAL else "Warning"

    @property
    def key(self) -> tuple[str, Reason]:
        """A newer event with the same key replaces it."""
        return self.uid, self.reason
