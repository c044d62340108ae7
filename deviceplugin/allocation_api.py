"""The API that allocates each device: device plugin, DRA or time slices, never two of them.

Pure. A device moves to another API only when no container has a share of it; until then no API
offers it, so running containers end and no new ones start.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import errors, names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


SETTLE_SECONDS = 30.0  # until no allocation of the former API is in flight any more


class Api(enum.StrEnum):
    """The API that allocates a device."""

    PLUGIN = "plugin"  # device plugin: pyvgpu.io/vcore and pyvgpu.io/vmemory
    DRA = "dra"  # ResourceClaims
    TIME_SLICES = "time-slices"  # whole devices without limits, each for several containers


_CHOICES = "plugin, dra or time-slices"
_EXAMPLE = "such as dra, or GPU-8c9f5a3e-...=dra"


@dataclasses.dataclass(frozen=True, slots=True)
class Configured:
    """The API of each device of a node, as --allocation-api sets it."""

    default: Api = Api.PLUGIN
    of: Mapping[str, Api] = dataclasses.field(default_factory=dict)  # by UUID

    def api(self, uuid: str) -> Api:
        """Return the configured API of a device; MIG devices have no time slices."""
        api = self.of.get(uuid, self.default)
        sliced_instance = api is Api.TIME_SLICES and uuid.startswith(names.MIG_UUID_PREFIX)
        return Api.PLUGIN if sliced_instance else api

    def any_of(self, api: Api) -> bool:
        """Whether any device is configured for *api*, or would be if it was there."""
        return api in (self.default, *self.of.values())

    @property
    def any_dra(self) -> bool:
        """Whether --allocation-api puts any device behind DRA."""
        return self.any_of(Api.DRA)


def parse(words: Iterable[str], default: Api) -> Configured:
    """Parse *words*, each an API or UUID=API; UsageError, with the rule, if one is invalid."""
    own: dict[str, Api] = {}
    for word in words:
        uuid, equals, name = word.rpartition("=")
        try:
            api = Api(name)
        except ValueError as exc:
            raise errors.UsageError(
                f"--allocation-api {word!r}: {name!r} is not an allocation API; must be "
                f"{_CHOICES}, or one of them for a device's UUID, {_EXAMPLE}"
            ) from exc
        if not equals:
            default = api
        elif not uuid.startswith(("GPU-", names.MIG_UUID_PREFIX)) or uuid in own:
            wrong = "is given twice" if uuid in own else "is not the UUID of a device"
            raise errors.UsageError(f"--allocation-api {word!r}: {uuid!r} {wrong}; {_EXAMPLE}")
        elif api is Api.TIME_SLICES and uuid.startswith(names.MIG_UUID_PREFIX):
            raise errors.UsageError(
                f"--allocation-api {word!r}: a MIG device has no time slices; must be plugin or "
                f"dra, such as {uuid}=plugin"
            )
        else:
            own[uuid] = api
    return Configured(default, own)


@dataclasses.dataclass(frozen=True, slots=True)
class ApiState:
    """The current and the configured API of a device."""

    now: Api
    wanted: Api

    @property
    def moves(self) -> bool:
        """Whether it waits for its shares to be released, and no API offers it."""
        return self.now is not self.wanted

    @property
    def elsewhere(self) -> str:
        """The API other than the device plugin that allocates it; empty: none.

        While it moves between two others, the one that has allocated it so far.
        """
        others = (api for api in (self.now, self.wanted) if api is not Api.PLUGIN)
        return next((api.value for api in others), "")

    @property
    def published(self) -> bool:
        """Whether it is in the ResourceSlice: claims may be allocated on it."""
        return self.now is self.wanted is Api.DRA


def states(
    uuids: Iterable[str], wanted: Configured, known: Mapping[str, Api], held: Iterable[str]
) -> dict[str, ApiState]:
    """Return the APIs of each device, by UUID; *known* are the recorded ones.

    A device without a record starts at its configured API, unless it is *held*: the device plugin
    has already allocated shares of it.
    """
    given = frozenset(held)
    return {
        uuid: ApiState(
            known.get(uuid, Api.PLUGIN if uuid in given else wanted.api(uuid)),
            wanted.api(uuid),
        )
        for uuid in uuids
    }
