"""`pyvgpu status-page`: web page of a cluster's devices, their users and waiting pods."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.cli import certificate_options, cluster_options, table
from pyvgpu.controller.status import cluster_state as shown
from pyvgpu.controller.status import guard
from pyvgpu.http import endpoints

if TYPE_CHECKING:
    import argparse

NAME = "pyvgpu-status-page"
AGENT_PORT = 5678

_DESCRIPTION = f"""\
Serve a web page by HTTPS that shows the devices of a cluster: which pods hold them, what
containers achieve, which pods wait and why, and what is wrong. Users log in with a token of the
cluster; the API server authenticates it, and authorizes its user to `{guard.VERB}` the path
{guard.PATH}. The page is read-only. It issues and renews its certificate, in Secret NAME, and
keeps the last day of its charts in ConfigMap NAME, if that exists.
"""
_EXAMPLES = """\
examples:
  pyvgpu status-page
  pyvgpu status-page --cluster frankfurt --listen [::]:9476
  pyvgpu status-page --kubeconfig ~/.kube/config --serve 127.0.0.1:8443
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu status-page`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    cluster_options.add_served(parser, NAME, "Service, Secret and ConfigMap", "browsers")
    add = parser.add_argument
    add(
        "--cluster",
        metavar="NAME",
        default="cluster",
        help="the cluster's name on the page (%(default)s)",
    )
    cluster_options.add_agents(parser, ", with the label app=agent")
    add(
        "--agent-port",
        metavar="PORT",
        default=str(AGENT_PORT),
        help="the port of their --listen (%(default)s)",
    )
    add(
        "--claims",
        action="store_true",
        help="also show pods that wait for ResourceClaims (Kubernetes 1.34 or later)",
    )
    certificate_options.add_options(parser)
    cluster_options.add_place(parser)


def run(options: argparse.Namespace) -> int:
    """Serve the page until a termination signal arrives."""
    address = endpoints.read_address(options.serve, "--serve")
    port = table.whole(1, 65535, AGENT_PORT, "a port")(options.agent_port, "--agent-port")
    with errors.needing("prometheus-client", "kubernetes"):
        from pyvgpu.controller.status.status_metrics import StatusMeter
    meter = StatusMeter()
    with errors.needing("aiohttp", "kubernetes"):
        from pyvgpu.http import tls_server
    with errors.needing("cryptography", "kubernetes"):
        from pyvgpu.controller.certs import serving_certificate
    api = cluster_options.connect(options, meter)
    stop = cluster_options.stop_on_signals()
    place = serving_certificate.ServerObjects(cluster_options.namespace(options), options.name)
    settings = shown.StatusSettings(
        options.cluster,
        options.agent_namespace,
        port,
        claims=options.claims,
        store=f"/api/v1/namespaces/{place.namespace}/configmaps/{place.name}",
    )
    known = serving_certificate.Identity(api, certificate_options.source(options, api, place))
    one = shown.Cluster(api, settings, meter)
    meter.watch(one, known.expires)

    def not_ready() -> str:
        if stop.is_set():
            return "it ends"
        return known.missing or one.missing

    with endpoints.serving(options.listen, endpoints.Pages(meter.text, one.alive, not_ready)):
        for part in (known.run, one.run):
            threading.Thread(target=part, args=(stop,), daemon=True).start()
        try:
            listener = tls_server.TlsServer(
                address, {}, known.context, meter.answered, shown=one.routes()
            )
        except OSError as exc:
            raise errors.UnavailableError(f"--serve {options.serve}: {exc.strerror}") from exc
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        stop.wait()
        listener.draining = True
        listener.shutdown()
        listener.server_close()
    return 0
