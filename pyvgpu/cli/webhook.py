"""`pyvgpu webhook`: admission webhook for pods with devices or sidecars."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, quantity
from pyvgpu.cli import certificate_options, cluster_options, table
from pyvgpu.controller.claims import claim_admission, template_maker
from pyvgpu.controller.webhook import (
    confines,
    conversions,
    devices,
    imagenames,
    total_validation,
    transform,
)
from pyvgpu.controller.webhook.shell import fleet
from pyvgpu.http import endpoints

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyvgpu.controller.certs import serving_certificate
    from pyvgpu.controller.webhook import review
    from pyvgpu.kube.apiserver import ApiServer

    Part = fleet.Fleet | template_maker.TemplateMaker  # must be synced before we answer

log = logging.getLogger(__name__)

NAME = "pyvgpu-webhook"
SIDECARS, DEVICES, VALIDATE, EPHEMERAL, IMAGES, CLAIMS = (
    "/sidecars",
    "/devices",
    "/devices/validate",
    "/devices/ephemeral",
    "/images",
    "/claims",
)
DRAIN_SECONDS = 5  # until requests stop arriving

_DESCRIPTION = """\
An admission webhook, which the API server calls when a pod is created. A pod that requests devices
gets defaults, and its pyvgpu.io/vmemory-mib becomes units of pyvgpu.io/vmemory; it is rejected if
its request can never be met, with a message that says what would be valid. The commands of
sidecars are moved into annotations, so that sidecars can be ended. The webhook issues and renews
its certificate, in Secret NAME, and sets its CA in the webhook configurations NAME.
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
    cluster_options.add_served(
        parser, NAME, "Service, Secret and configurations", "the API server"
    )
    _add_devices(parser)
    _add_sidecars(parser)
    certificate_options.add_options(parser)
    cluster_options.add_options(parser)


def _add_devices(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("pods that request devices").add_argument
    add(
        "--memory-unit",
        metavar="SIZE",
        default="256Mi",
        help="the size of 1 pyvgpu.io/vmemory, as on the agents (%(default)s)",
    )
    add(
        "--default-vmemory",
        metavar="SIZE",
        help="vmemory of a share without any, while no device is known (the pod is rejected)",
    )
    add(
        "--scheduler",
        metavar="NAME",
        action="append",
        default=[],
        help="a scheduler that handles devices; the first is the default for pods that name none; "
        "other schedulers are rejected (any)",
    )
    add(
        "--claims",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="namespaces in which pods get devices through claims (DRA) instead of the device "
        "plugin; a pattern, may be given several times (none)",
    )
    add(
        "--convert",
        metavar="SYSTEM",
        action="append",
        default=[],
        choices=[word.value for word in conversions.Words],
        help="convert pods of another system: hami, nvidia or gpu-manager; may be given several "
        "times",
    )
    add(
        "--allow-node-name",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="namespaces in which pods may set nodeName; a pattern, may be given several times "
        "(none)",
    )
    add(
        "--allow-privileged",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="namespaces in which containers may be privileged, or have capabilities like "
        "SYS_ADMIN; a pattern, may be given several times (none)",
    )
    add(
        "--allow-host-pid",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="namespaces in which pods with shares may set hostPID; a pattern, may be given "
        "several times (none)",
    )
    add(
        "--allow-host-path",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder of nodes that pods with shares may mount, with all below it; may be given "
        "several times (none)",
    )
    add(
        "--image-rules",
        metavar="FILE",
        help="rules that rewrite the image names of all pods that are reviewed (none)",
    )


def _add_sidecars(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("pods with sidecars").add_argument
    add(
        "--convert-to-native",
        metavar="NAMESPACE",
        action="append",
        default=[],
        help="namespaces in which sidecars become native ones; a pattern, may be given several "
        "times",
    )
    add(
        "--virtual-commands",
        metavar="WAY",
        choices=[expansion.value for expansion in transform.Expansion],
        default=transform.Expansion.NONE.value,
        help="what expands commands on virtual nodes: kubelet, launcher or none (%(default)s)",
    )
    add(
        "--virtual-provider",
        metavar="NAME",
        choices=[provider.value for provider in transform.Provider],
        default=transform.Provider.NONE.value,
        help="provider of virtual nodes, whose sidecar switch is used: eci, bci or none "
        "(%(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until a termination signal arrives."""
    address = endpoints.read_address(options.serve, "--serve")
    rules = _rules(options)
    renames = imagenames.load(Path(options.image_rules)) if options.image_rules else ()
    admission = transform.Admission(
        settings=cluster_options.sidecar_settings(options),
        native_namespaces=tuple(options.convert_to_native),
        virtual_expansion=transform.Expansion(options.virtual_commands),
        virtual_provider=transform.Provider(options.virtual_provider),
    )
    with errors.needing("prometheus-client", "kubernetes"):
        from pyvgpu.controller.webhook.shell.webhook_metrics import WebhookMeter
    meter = WebhookMeter()
    with errors.needing("aiohttp", "kubernetes"):
        from pyvgpu.controller.webhook.shell import server
    stop = cluster_options.stop_on_signals()
    api = cluster_options.connect(options, meter)
    if admission.settings.policies:
        log.info(
            "--config has policies for namespaces %s: the API server sends their pods only if the "
            "condition of sidecars.pyvgpu.io names them, which the chart derives from "
            "sidecar.settings",
            ", ".join(sorted({policy.namespace for policy in admission.settings.policies})),
        )
    known = _identity(options, api)
    meter.gauge(
        "pyvgpu_webhook_certificate_expiry_seconds",
        "Expiry time of the certificate, in seconds since 1970; 0: no certificate yet.",
        known.expires,
    )
    nodes = fleet.Fleet(api, admission.settings, rules.unit, meter)
    templates = template_maker.TemplateMaker(api, meter)
    parts: list[tuple[str, Part]] = [("nodes", nodes)]
    if rules.claims:
        parts.append(("templates of claims", templates))
    routes: dict[str, review.Mutation] = {
        SIDECARS: transform.mutation(admission, nodes.oldest_kubelet),
        DEVICES: devices.mutation(rules, nodes.devices, templates.ensure),
        VALIDATE: devices.validation(rules, nodes.devices),
        EPHEMERAL: devices.ephemeral(rules),
        IMAGES: imagenames.mutation(renames),
        CLAIMS: total_validation.validation(
            claim_admission.ClaimAdmitter(api, cluster_options.namespace(options)).why_not
        ),
    }
    shown = endpoints.Pages(meter.text, ready=lambda: _not_ready(known, parts, stop))
    with endpoints.serving(options.listen, shown):
        try:
            listener = server.WebhookServer(address, routes, known.context, meter.reviewed)
        except OSError as exc:
            raise errors.UnavailableError(f"--serve {options.serve}: {exc.strerror}") from exc
        # The server listens before we are ready: readiness depends on these threads.
        for run_part in (known.run, *(part.run for _, part in parts)):
            threading.Thread(target=run_part, args=(stop,), daemon=True).start()
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        stop.wait()
        listener.draining = True
        if known.ready.is_set():
            time.sleep(DRAIN_SECONDS)
        listener.shutdown()
        listener.server_close()
    return 0


def _rules(options: argparse.Namespace) -> devices.DeviceRules:
    for path in options.allow_host_path:
        if not path.startswith("/"):
            raise errors.UsageError(
                f"--allow-host-path {path!r}: must be an absolute path, such as /data"
            )
    fallback = options.default_vmemory
    return devices.DeviceRules(
        unit=table.mebibytes(options.memory_unit, "--memory-unit"),
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


def _identity(options: argparse.Namespace, api: ApiServer) -> serving_certificate.Identity:
    """Return the serving identity, with the certificate source that the options name."""
    with errors.needing("cryptography", "kubernetes"):
        from pyvgpu.controller.certs import serving_certificate
    place = serving_certificate.ServerObjects(cluster_options.namespace(options), options.name)
    source = certificate_options.source(options, api, place)
    return serving_certificate.Identity(api, source, (place.mutating, place.validating))


def _not_ready(
    known: serving_certificate.Identity, parts: Sequence[tuple[str, Part]], stop: threading.Event
) -> str:
    if stop.is_set():
        return "it ends"
    return known.missing or next(
        (f"the {name} have not been read yet" for name, part in parts if not part.synced), ""
    )
