"""`pyvgpu webhook`: changes and refuses pods when they are created."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, pages, quantity
from pyvgpu.cli import cluster, serving
from pyvgpu.controller.claims import keeping, making
from pyvgpu.controller.webhook import (
    confines,
    conversions,
    devices,
    imagenames,
    sidecars,
    totals,
    transform,
)
from pyvgpu.controller.webhook.shell import fleet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyvgpu.controller import identity
    from pyvgpu.controller.webhook import review
    from pyvgpu.kube.apiserver import ApiServer

    Part = fleet.Fleet | making.Maker  # what is followed before anything is answered

log = logging.getLogger(__name__)

NAME = "pyvgpu-webhook"
SIDECARS, DEVICES, JUDGE, EPHEMERAL, IMAGES, CLAIMS = (
    "/sidecars",
    "/devices",
    "/devices/judge",
    "/devices/ephemeral",
    "/images",
    "/claims",
)
DRAIN_SECONDS = 5  # until nobody sends requests here any more

_DESCRIPTION = """\
Answer the API server, which asks when a pod is created. A pod that asks for devices gets what it
does not say, and is refused where what it asks for can never be, with a sentence that says what
would do. The commands of sidecars are moved into annotations, so that they can be ended. The
certificate is made and renewed here: it lies in the Secret NAME, and the API server is told of it
in the configurations NAME.
"""
_EXAMPLES = """\
examples:
  pyvgpu webhook
  pyvgpu webhook --default-vmemory 4Gi --allow-host-path /data --allow-privileged 'gpu-operator'
  pyvgpu webhook --convert hami --image-rules /etc/rules.yaml
  pyvgpu webhook --convert-to-native 'team-*' --convert-to-native batch
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu webhook`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    cluster.add_served(parser, NAME, "Service, Secret and configurations", "it is asked")
    _add_devices(parser)
    _add_sidecars(parser)
    serving.add_options(parser)
    cluster.add_options(parser)


def _add_devices(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("pods that ask for devices").add_argument
    add(
        "--memory-unit",
        metavar="SIZE",
        default="256Mi",
        help="what 1 of pyvgpu.io/vmemory is, as the agents have it (%(default)s)",
    )
    add(
        "--default-vmemory",
        metavar="SIZE",
        help="of a share that does not say, where no device is known (such a pod is refused)",
    )
    add(
        "--scheduler",
        metavar="NAME",
        action="append",
        default=[],
        help="that knows of devices; the first is for pods that say none; others are refused "
        "(any)",
    )
    add(
        "--claims",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="where pods get devices by claims (DRA), not of the device plugin; a pattern, may be "
        "given again (nowhere)",
    )
    add(
        "--convert",
        metavar="WORDS",
        action="append",
        default=[],
        choices=[it.value for it in conversions.Words],
        help="whose words are taken for ours: hami, nvidia or gpu-manager; may be given again",
    )
    add(
        "--allow-node-name",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="where pods may say nodeName; a pattern, may be given again (nowhere)",
    )
    add(
        "--allow-privileged",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="where containers may be privileged, or have capabilities like SYS_ADMIN; a pattern, "
        "may be given again (nowhere)",
    )
    add(
        "--allow-host-pid",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="where pods with shares may say hostPID; a pattern, may be given again (nowhere)",
    )
    add(
        "--allow-host-path",
        metavar="DIR",
        action="append",
        default=[],
        help="that pods with shares may mount of nodes, and all below; may be given again (none)",
    )
    add(
        "--image-rules",
        metavar="FILE",
        help="how names of images change, of all pods that the API server asks about (not at all)",
    )


def _add_sidecars(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("pods with sidecars").add_argument
    add(
        "--convert-to-native",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="where sidecars become native ones; a pattern, may be given again",
    )
    add(
        "--virtual-commands",
        metavar="WAY",
        choices=[it.value for it in transform.Expansion],
        default=transform.Expansion.NONE.value,
        help="what expands commands on virtual nodes: kubelet, launcher or none (%(default)s)",
    )
    add(
        "--virtual-provider",
        metavar="NAME",
        choices=[it.value for it in transform.Provider],
        default=transform.Provider.NONE.value,
        help="whose switch for sidecars virtual nodes have: eci, bci or none (%(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Answer until told to end."""
    address = pages.read_address(options.serve, "--serve")
    rules = _rules(options)
    renames = imagenames.load(Path(options.image_rules)) if options.image_rules else ()
    admission = transform.Admission(
        settings=cluster.sidecar_settings(options),
        native_namespaces=tuple(options.convert_to_native),
        virtual_expansion=transform.Expansion(options.virtual_commands),
        virtual_provider=transform.Provider(options.virtual_provider),
    )
    meter = cluster.find_metrics().WebhookMeter()
    with errors.needing("aiohttp", "kubernetes"):
        from pyvgpu.controller.webhook.shell import server
    stop = cluster.stop_on_signals()
    api = cluster.connect(options, meter)
    if admission.settings.policies:
        log.info(
            "--config has policies for namespaces %s: the API server asks about their pods only "
            "if the condition of sidecars.pyvgpu.io names them, as the chart makes it of "
            "sidecar.settings",
            ", ".join(sorted({it.namespace for it in admission.settings.policies})),
        )
    known = _identity(options, api)
    meter.gauge(
        "pyvgpu_webhook_certificate_expiry_seconds",
        "When the certificate ends, in seconds since 1970; 0: there is none yet.",
        known.expires,
    )
    nodes = fleet.Fleet(api, admission.settings, rules.unit, meter)
    templates = making.Maker(api, meter)
    parts: list[tuple[str, Part]] = [("nodes", nodes)]
    if rules.claims:
        parts.append(("templates of claims", templates))
    routes: dict[str, review.Mutation] = {
        SIDECARS: sidecars.mutation(admission, nodes.oldest_kubelet),
        DEVICES: devices.mutation(rules, nodes.devices, templates.ensure),
        JUDGE: devices.validation(rules, nodes.devices),
        EPHEMERAL: devices.ephemeral(rules),
        IMAGES: imagenames.mutation(renames),
        CLAIMS: totals.validation(keeping.Keeper(api, cluster.namespace(options)).why_not),
    }
    shown = pages.Pages(meter.text, ready=lambda: _not_ready(known, parts, stop))
    with pages.serving(options.listen, shown):
        try:
            listener = server.Server(address, routes, known.context, meter.reviewed)
        except OSError as exc:
            raise errors.UnavailableError(f"--serve {options.serve}: {exc.strerror}") from exc
        # It is there before we are ready, which is a matter of those.
        for part in (known.run, *(it.run for _, it in parts)):
            threading.Thread(target=part, args=(stop,), daemon=True).start()
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        stop.wait()
        listener.draining = True
        if known.ready.is_set():
            time.sleep(DRAIN_SECONDS)
        listener.shutdown()
        listener.server_close()
    return 0


def _rules(options: argparse.Namespace) -> devices.Rules:
    for path in options.allow_host_path:
        if not path.startswith("/"):
            raise errors.UsageError(
                f"--allow-host-path {path!r}: must be a folder from the root, such as /data"
            )
    fallback = options.default_vmemory
    return devices.Rules(
        unit=quantity.parse_size(options.memory_unit, "--memory-unit"),
        fallback=quantity.parse_size(fallback, "--default-vmemory") if fallback else 0,
        schedulers=tuple(options.scheduler),
        claims=tuple(options.claims),
        words=frozenset(map(conversions.Words, options.convert)),
        confines=confines.Confines(
            tuple(options.allow_node_name),
            tuple(options.allow_privileged),
            tuple(options.allow_host_pid),
            tuple(options.allow_host_path),
        ),
    )


def _identity(options: argparse.Namespace, api: ApiServer) -> identity.Identity:
    """Return what keeps the certificate, from where the options want it."""
    with errors.needing("cryptography", "kubernetes"):
        from pyvgpu.controller import identity
    place = identity.Place(cluster.namespace(options), options.name)
    source = serving.source(options, api, place)
    return identity.Identity(api, source, (place.mutating, place.validating))


def _not_ready(
    known: identity.Identity, parts: Sequence[tuple[str, Part]], stop: threading.Event
) -> str:
    if stop.is_set():
        return "it ends"
    return known.missing or next(
        (f"the {name} are not known yet" for name, it in parts if not it.synced), ""
    )
