"""What the agent has to do with who schedules pods: it publishes, and follows what was chosen."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin import choices, gaia, predicates, publishing
from pyvgpu.deviceplugin.settings import Placement, Profile

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.deviceplugin import apiserver, ownnode
    from pyvgpu.deviceplugin.granting import Granter
    from pyvgpu.deviceplugin.parts import Parts
    from pyvgpu.deviceplugin.settings import Settings


def add(
    parts: Parts,
    settings: Settings,
    node: ownnode.OwnNode | None,
    granter: Granter,
    minors: predicates.Minors,
) -> None:
    """Add the parts that speak of placement with the API server, if there is one.

    UsageError if there must be one; DataError if the key is none.
    """
    if node is None:
        if settings.placement is Placement.EXTENDER:
            raise errors.UsageError(
                "--placement extender: needs the API server, in which the extender's choice "
                "stands: run as a pod, or give --kubeconfig FILE"
            )
        return
    api = node.api
    granter.starts.choose = choices.Wished(api, settings.node).choose
    if settings.profile is Profile.GAIA:
        noting = predicates.Predicates(api, settings.node, minors)
        granter.starts.choose, granter.given = noting.choose, noting.note
        parts.add("predicates", noting.run, noting.stop)
    if settings.placement_key is not None:
        granter.starts.choose = _sealed(api, settings.node, settings.placement_key).choose

    def text() -> str:
        known = granter.known.values()
        return publishing.text_of(settings.unit, granter.devices, minors(), known)

    def labels() -> dict[str, str]:
        found = dict(settings.labels)
        if settings.profile is Profile.GAIA:
            found |= gaia.labels(granter.devices)
        return found

    publisher = publishing.Publisher(node, text, labels)
    granter.changed = publisher.changed
    if settings.placement is Placement.AGENT:
        granter.starts.until_known = publisher.wait
    parts.add("publisher", publisher.run, publisher.stop)


def _sealed(api: apiserver.ApiServer, node: str, keys: Path) -> choices.Sealed:
    read = functools.partial(choices.read_keys, keys)
    read()  # an agent that could never take a choice is not to start
    return choices.Sealed(api, node, read)
