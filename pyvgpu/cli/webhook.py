"""`pyvgpu webhook`: changes pods with sidecars when they are created."""

from __future__ import annotations

import datetime
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, pages
from pyvgpu.cli import cluster
from pyvgpu.controller import informer
from pyvgpu.controller.sidecar import nodes
from pyvgpu.controller.webhook import server, sidecars, transform

if TYPE_CHECKING:
    import argparse
    import types
    from collections.abc import Callable

    from pyvgpu.controller import metrics
    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.server import Server

NAME = "pyvgpu-webhook"
PATH = "/sidecars"
DRAIN_SECONDS = 5  # until nobody sends requests here any more

_DESCRIPTION = """\
Answer the API server, which asks when a pod is created: move the commands of its sidecars into
annotations, so that they can be ended, and label it for `pyvgpu sidecar-controller`. No pod is
refused. The certificate is made and renewed here: it lies in the Secret NAME, and the API server
is told of it in the MutatingWebhookConfiguration NAME.
"""
_EXAMPLES = """\
examples:
  pyvgpu webhook
  pyvgpu webhook --convert-to-native 'team-*' --convert-to-native batch
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu webhook`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add(
        "--name",
        metavar="NAME",
        default=NAME,
        help="of its Service, Secret and MutatingWebhookConfiguration (%(default)s)",
    )
    add(
        "--serve",
        metavar="ADDRESS",
        default="0.0.0.0:8443",
        help="where it is asked (%(default)s)",
    )
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
    cluster.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Answer until told to end."""
    address = pages.read_address(options.serve, "--serve")
    admission = transform.Admission(
        settings=cluster.sidecar_settings(options),
        native_namespaces=tuple(options.convert_to_native),
        virtual_expansion=transform.Expansion(options.virtual_commands),
        virtual_provider=transform.Provider(options.virtual_provider),
    )
    meter = cluster.find_metrics().WebhookMeter()
    identity = _find_identity()
    api = cluster.connect(options, meter)
    stop = cluster.stop_on_signals()
    oldest = _watch_kubelets(api, admission, stop, meter) if options.convert_to_native else _none
    known = identity.Identity(api, identity.Place(cluster.namespace(options), options.name))
    meter.gauge(
        "pyvgpu_webhook_certificate_expiry_seconds",
        "When the certificate ends, in seconds since 1970; 0: there is none yet.",
        known.expires,
    )
    shown = pages.Pages(meter.text, ready=lambda: _not_ready(known.ready, stop))
    with pages.serving(options.listen, shown):
        threading.Thread(target=known.run, args=(stop,), daemon=True).start()
        routes = {PATH: sidecars.mutation(admission, oldest)}
        try:
            listener = server.Server(address, routes, known.context, meter.reviewed)
        except OSError as exc:
            raise errors.UnavailableError(f"--serve {options.serve}: {exc.strerror}") from exc
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        stop.wait()
        listener.draining = True
        if known.ready.is_set():
            time.sleep(DRAIN_SECONDS)
        listener.shutdown()
        listener.server_close()
    return 0


def _find_identity() -> types.ModuleType:
    with errors.needing("cryptography", "kubernetes"):
        from pyvgpu.controller.webhook import identity
    return identity


def _not_ready(ready: threading.Event, stop: threading.Event) -> str:
    if stop.is_set():
        return "it ends"
    return "" if ready.is_set() else "there is no certificate yet"


def _watch_kubelets(
    api: Server, admission: transform.Admission, stop: threading.Event, meter: metrics.Meter
) -> Callable[[], nodes.Release | None]:
    """Return what tells the oldest kubelet that a pod may meet, None while that is not known."""

    def read(thing: Object) -> nodes.Node:
        return nodes.read(thing, None, datetime.datetime.now(datetime.UTC), admission.settings)

    known = informer.Informer(api, "/api/v1/nodes", {}, read, lambda _: None, meter)
    threading.Thread(target=known.run, args=(stop,), daemon=True).start()
    return lambda: nodes.oldest(known.values()) if known.synced.is_set() else None


def _none() -> None:
    return None
