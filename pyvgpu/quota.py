"""What a tenant asks for."""

from __future__ import annotations

import dataclasses
import enum
from typing import Self

from pyvgpu import errors, quantity


class Choice(enum.IntEnum):
    """One of a few that users call by a word: its name in small letters."""

    @classmethod
    def parse(cls, text: str, option: str) -> Self:
        """Return the one that *text* names; UsageError with those that are valid."""
        for choice in cls:
            if choice.name.lower() == text:
                return choice
        raise cls.unknown(repr(text), option)

    @classmethod
    def unknown(cls, shown: str, option: str) -> errors.UsageError:
        """Return what to say of a value that is none, and stands there as *shown*."""
        first, *middle, last = (choice.name.lower() for choice in cls)
        valid = ", ".join([first, *middle])
        return errors.UsageError(f"{option} {shown}: must be {valid} or {last}, such as {first}")


class Policy(Choice):
    """What happens to device time that nobody else wants; the numbers are the region's."""

    HARD = 0  # never above vcore
    ELASTIC = 1  # above vcore while the device would be idle


class Priority(Choice):
    """Which of those that share a device gives way to which."""

    LOW = -1  # only what the others leave, at most its vcore
    NORMAL = 0
    HIGH = 1  # as normal, and first where time is lent

    @classmethod
    def of_hami(cls, text: str, option: str) -> Priority:
        """Return what HAMi's CUDA_TASK_PRIORITY means: 0 is high, any larger number is low."""
        if not (text.isascii() and text.isdigit()):
            raise errors.UsageError(
                f"{option} {text!r}: must be 0, which is high, or a larger number, which is low"
            )
        return cls.HIGH if int(text) == 0 else cls.LOW


@dataclasses.dataclass(frozen=True, slots=True)
class Quota:
    """A request for a part of one device; None means that it was left out."""

    vcore: int | None = None  # percent of a device's time
    vmemory: int | None = None  # bytes
    policy: Policy = Policy.HARD
    vcore_limit: int | None = None  # what elastic may reach, vcore to 100
    priority: Priority = Priority.NORMAL

    def __post_init__(self) -> None:
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
                f"vcore limit {self.vcore_limit}: must stand beside the vcore that it is above, "
                f"such as --vcore {max(1, self.vcore_limit // 2)} "
                f"--vcore-limit {self.vcore_limit} --policy elastic"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What shall be another than it was in a quota that counts already; None stays."""

    vcore: int | None = None
    vmemory: int | None = None
    policy: Policy | None = None
    vcore_limit: int | None = None
    priority: Priority | None = None
