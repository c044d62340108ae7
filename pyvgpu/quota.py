"""The quota that a tenant requests: vcore, vmemory, policy, limit, priority."""

from __future__ import annotations

import dataclasses
import enum
from typing import Self

from pyvgpu import errors, quantity


class WordEnum(enum.IntEnum):
    """An enumeration whose values users write as lower-case words."""

    @classmethod
    def parse(cls, text: str, option: str) -> Self:
        """Return the value that *text* names; UsageError lists the valid ones."""
        for choice in cls:
            if choice.name.lower() == text:
                return choice
        raise cls.unknown(repr(text), option)

    @classmethod
    def unknown(cls, shown: str, option: str) -> errors.UsageError:
        """Return the error for an invalid value, displayed as *shown*."""
        first, *middle, last = (choice.name.lower() for choice in cls)
        valid = ", ".join([first, *middle])
        return errors.UsageError(f"{option} {shown}: must be {valid} or {last}, such as {first}")


class TimePolicy(WordEnum):
    """Whether a tenant may use idle device time; the numbers are those of the region."""

    HARD = 0  # never above vcore
    ELASTIC = 1  # above vcore while the device is otherwise idle


class Isolation(WordEnum):
    """The means that hold a tenant to its quota."""

    QUOTA = 0  # the shim alone: vcore is device time
    HARDWARE = 1  # a MIG device of its own
    MPS = 2  # kernels of several tenants run together: vcore is SMs


class Priority(WordEnum):
    """Priority among the tenants of a device."""

    LOW = -1  # only the time that others leave, at most its vcore
    NORMAL = 0
    HIGH = 1  # like normal, but served first when idle time is lent

    @classmethod
    def of_hami(cls, text: str, option: str) -> Priority:
        """Parse HAMi's CUDA_TASK_PRIORITY: 0 is high, any larger number is low."""
        if not (text.isascii() and text.isdigit()):
            raise errors.UsageError(
                f"{option} {text[:40]!r}: must be 0, which is high, or a larger number, which "
                "is low"
            )
        return cls.LOW if text.strip("0") else cls.HIGH


@dataclasses.dataclass(frozen=True, slots=True)
class Quota:
    """A request for a share of one device; None means that it is not given."""

    vcore: int | None = None  # percent of a device's time
    vmemory: int | None = None  # bytes
    policy: TimePolicy = TimePolicy.HARD
    vcore_limit: int | None = None  # the most that elastic may reach, vcore to 100
    priority: Priority = Priority.NORMAL
    isolation: Isolation = Isolation.QUOTA

    def __post_init__(self) -> None:
        self._check_mps()
        if self.vcore is not None and not 1 <= self.vcore <= quantity.WHOLE_DEVICE:
            raise errors.UsageError(
                f"vcore={self.vcore}: must be from 1 to {quantity.WHOLE_DEVICE}, such as 50"
            )
        if self.vmemory is not None and not 1 <= self.vmemory <= quantity.MAXIMUM_BYTES:
            raise errors.UsageError(
                f"vmemory={self.vmemory}: must be from 1 to {quantity.MAXIMUM_BYTES} bytes"
            )
        if self.vcore_limit is not None and self.vcore is None:
            raise errors.UsageError(
                f"vcore limit {self.vcore_limit}: must be given together with a vcore, "
                f"such as --vcore {max(1, self.vcore_limit // 2)} "
                f"--vcore-limit {self.vcore_limit} --policy elastic"
            )

    def _check_mps(self) -> None:
        """Under MPS vcore is a part of the SMs: the options of time have no meaning."""
        if self.isolation is not Isolation.MPS:
            return
        if self.vcore_limit is not None:
            raise errors.UsageError(
                f"vcore limit {self.vcore_limit}: has no meaning under MPS, where vcore is a "
                "fixed part of the SMs; valid would be to leave it out"
            )
        if self.policy is not TimePolicy.HARD:
            raise errors.UsageError(
                "policy elastic: must be hard under MPS, where vcore is a fixed part of the SMs"
            )
        if self.priority is not Priority.NORMAL:
            raise errors.UsageError(
                f"priority {self.priority.name.lower()}: must be normal under MPS, which does not "
                "divide time"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class QuotaChange:
    """A change of an existing quota; None keeps the old value."""

    vcore: int | None = None
    vmemory: int | None = None
    policy: TimePolicy | None = None
    vcore_limit: int | None = None
    priority: Priority | None = None
