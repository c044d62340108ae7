"""The agent's link to the scheduler: publish the devices, follow the chosen ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin import choices, gaia, predicates, publishing
from pyvgpu.deviceplugin.settings import Placement, Profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin import ownnode, pods
    from pyvgpu.deviceplugin.granting import Granter
    from pyvgpu.deviceplugin.parts import Parts
    from pyvgpu.deviceplugin.settings import Settings


def add(
    parts: Parts,
    settings: Settings,
    node: ownnode.OwnNode | None,
    known: pods.Pods | None,
    granter: Granter,
    minors: predicates.Minors,
) -> Callable[[], str]:
    """Add the components that exchange placements through the API server, if there is one.

    Returns a function that tells why no pod can be placed here yet, '' if pods can. UsageError if
    the settings need an API server; DataError for a malformed key.
    """
    if node is None or known is None:
        if settings.placement is Placement.EXTENDER:
            raise errors.UsageError(
                "--placement extender: needs the API server, which stores the extender's choice: "
                "run as a pod, or give --kubeconfig FILE"
            )
        return str
    granter.starts.choose = choices.Wished(known).choose
    if settings.profile is Profile.GAIA:
        noting = predicates.Predicates(known, settings.node, minors)
        granter.starts.choose, granter.given = noting.choose, noting.note
        parts.add("predicates", noting.run, noting.stop)
    trouble: Callable[[], str] = str
    if settings.placement_key is not None:
        keys = choices.Keys(settings.placement_key)
        with contextlib.suppress(errors.UnavailableError):  # the scheduler has yet to create it
            keys.read()
        granter.starts.choose = choices.Sealed(known, settings.node, keys.read).choose
        trouble = lambda: keys.trouble  # noqa: E731

    def text() -> str:
        granted = granter.known.values()
        return publishing.text_of(settings.unit, granter.devices, minors(), granted)

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
    return trouble
