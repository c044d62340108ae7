"""`pyvgpu scheduler`: scheduler extender that chooses the nodes and devices of pods."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import os
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, input_files
from pyvgpu.cli import certificate_options, cluster_options, scheduler_snapshot, table
from pyvgpu.controller.scheduler import cache
from pyvgpu.controller.scheduler.shell import extender_routes, leader_label, session
from pyvgpu.http import endpoints
from pyvgpu.kube import leases

if TYPE_CHECKING:
    import argparse
    import types

    from pyvgpu.controller.certs import serving_certificate

log = logging.getLogger(__name__)

NAME = leader_label.LEASE
KEY = f"{cluster_options.AGENTS}/pyvgpu-placement"
DRAIN_SECONDS = 2  # for kube-scheduler to move on to another replica

_DESCRIPTION = """\
A scheduler extender for kube-scheduler. It filters and scores nodes by the free room on their
devices, selects the victims of preemption, and binds pods. The devices of a pod are sealed for the
agent of its node (device-plugin --placement extender). Of several replicas only the leader
answers: it holds a lease, and its pod has a label that a Service selects. The scheduler issues and
renews its certificate, in Secret NAME together with the files for kube-scheduler: ca.crt, and
client.crt and client.key, which identify it.
"""
_EXAMPLES = """\
examples:
  pyvgpu scheduler
  pyvgpu scheduler --policy spread --listen [::]:9473
  pyvgpu scheduler --client-authority /etc/kubernetes/ca.crt --client-name system:kube-scheduler
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu scheduler`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    cluster_options.add_served(parser, NAME, "Service, Secret and lease", "kube-scheduler")
    add = parser.add_argument
    add(
        "--key",
        metavar="NAMESPACE/NAME",
        default=KEY,
        help="the Secret with the key that seals choices, created if missing (%(default)s)",
    )
    scheduler_snapshot.add_policy(parser)
    add(
        "--resync",
        metavar="SECONDS",
        default=f"{cache.SchedulerSettings().resync_seconds:g}",
        help="interval of the comparison of its cache with the API server (%(default)s)",
    )
    add(
        "--client-days",
        metavar="DAYS",
        default="0",
        help="the lifetime of client.crt in Secret NAME, renewed when 2/3 of it are over, for a "
        "kube-scheduler that reads the files from the Secret: from 3 to 3650; 0: as long as the "
        "CA (%(default)s)",
    )
    add(
        "--client-authority",
        metavar="FILE",
        help="the CA of client certificates (our own, which signed client.crt in Secret NAME)",
    )
    add(
        "--client-name",
        metavar="NAME",
        action="append",
        default=[],
        help="accept only clients with this common name; may be given several times (any)",
    )
    add(
        "--any-client",
        action="store_true",
        help="accept every client: any that can reach it can then bind and evict any pod",
    )
    add(
        "--pod",
        metavar="NAME",
        default=os.environ.get("POD_NAME", ""),
        help="the name of this pod, which gets the leader's label ($POD_NAME)",
    )
    certificate_options.add_options(parser)
    cluster_options.add_place(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a termination signal arrives, while we hold the lease."""
    address = endpoints.read_address(options.serve, "--serve")
    settings = dataclasses.replace(
        scheduler_snapshot.read_settings(options),
        resync_seconds=table.seconds(1, 86_400, 60)(options.resync, "--resync"),
    )
    trusted = _read_authority(options)
    life = _read_life(options.client_days)
    own_callers = not (trusted or options.any_client)  # our authority signs client certificates
    with errors.needing("prometheus-client", "kubernetes"):
        from pyvgpu.controller.scheduler.shell.scheduler_metrics import SchedulerMeter
    meter = SchedulerMeter()
    callers, keys, identity = _find_certificates()
    with errors.needing("aiohttp", "kubernetes"):
        from pyvgpu.http import tls_server
    key_place = _read_place(identity, options.key)
    api = cluster_options.connect(options, meter)
    namespace = cluster_options.namespace(options)
    stop = cluster_options.stop_on_signals()
    place = identity.ServerObjects(namespace, options.name)
    known = identity.Identity(api, certificate_options.source(options, api, place, lasting=True))
    sealing = keys.SealKeys(api, key_place)
    asking = callers.Callers(api, place, life=life)
    wrap = callers.guard(lambda: trusted or asking.authorities())
    lease = leases.Lease(api, namespace, options.name, cluster_options.identity())
    served = extender_routes.ExtenderRoutes(meter.failures.inc)
    meter.watch(lambda: served.term, lambda: lease.is_held, known.expires)

    def begin() -> session.Term:
        own = leader_label.OwnPod(api, namespace, options.pod)
        return session.Term(api, settings, sealing.all, own, meter, lease.is_held_for)

    def not_ready() -> str:
        if stop.is_set():
            return "it ends"
        callers_missing = asking.missing if own_callers else ""
        return known.missing or callers_missing or sealing.missing

    def wrong() -> str:
        return "" if served.term is None else served.term.alive

    shown = endpoints.Pages(meter.text, wrong, not_ready)
    with endpoints.serving(options.listen, shown):
        try:
            listener = tls_server.TlsServer(
                address,
                served.routes,
                known.context if options.any_client else lambda: wrap(known.context()),
                meter.answered,
                most_bytes=extender_routes.MOST_BYTES,
                most_connections=extender_routes.MOST_CONNECTIONS,
                clients=options.client_name,
                quick=extender_routes.QUICK,
            )
        except OSError as exc:
            raise errors.UnavailableError(f"--serve {options.serve}: {exc.strerror}") from exc
        # The server listens before we are ready: readiness depends on these threads.
        for part in (known.run, sealing.run, *([asking.run] if own_callers else [])):
            threading.Thread(target=part, args=(stop,), daemon=True).start()
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        while not sealing.ready.wait(0.2) and not stop.is_set():
            pass
        while lease.wait(stop):
            log.info("acquired lease %s/%s", namespace, options.name)
            _lead(served, begin(), lease, stop)
            if not stop.is_set():
                log.warning(
                    "lost lease %s/%s: another replica is the leader, or none is",
                    namespace,
                    options.name,
                )
        listener.draining = True
        time.sleep(DRAIN_SECONDS)
        listener.shutdown()
        listener.server_close()
    return 0


def _lead(
    served: extender_routes.ExtenderRoutes,
    one: session.Term,
    lease: leases.Lease,
    stop: threading.Event,
) -> None:
    """Let *one* answer requests for as long as we hold the lease."""
    over = threading.Event()
    thread = threading.Thread(target=one.run, args=(over,), daemon=True)
    served.begin(one)  # before the leader's label directs kube-scheduler here
    thread.start()
    try:
        while lease.is_held and not stop.wait(leases.RENEW_SECONDS):
            lease.try_to_hold()
    finally:
        served.begin(None)
        over.set()
        thread.join()
        one.drain()
        lease.give_back()


def _read_life(text: str) -> datetime.timedelta | None:
    if not (text.isascii() and text.isdigit() and (int(text) == 0 or 3 <= int(text) <= 3650)):
        raise errors.UsageError(
            f"--client-days {text!r}: must be 0, or a whole number from 3 to 3650, such as 90"
        )
    return datetime.timedelta(days=int(text)) if int(text) else None


def _read_authority(options: argparse.Namespace) -> str:
    """Return the certificates of --client-authority, empty if it is not given."""
    file = options.client_authority
    if options.any_client and (file or options.client_name):
        raise errors.UsageError(
            "--any-client: contradicts --client-authority and --client-name, which name the "
            "clients; leave it out"
        )
    if file is None:
        if not (options.any_client or certificate_options.makes_its_own(options)):
            raise errors.UsageError(
                "--certificate-folder, --certificate-signer: another program signs, so pyvgpu "
                "issues no client certificates: --client-authority FILE must name the CA that "
                "issues them, such as /etc/kubernetes/pki/ca.crt"
            )
        return ""
    trusted = input_files.read_file(
        Path(file), f"--client-authority {file}", "must be certificates in PEM"
    )
    try:
        ssl.create_default_context(cadata=trusted)
    except (ssl.SSLError, ValueError) as exc:
        raise errors.DataError(
            f"--client-authority {file}: {errors.reason_of(exc)}; must be certificates in PEM"
        ) from exc
    return trusted


def _read_place(found: types.ModuleType, text: str) -> serving_certificate.ServerObjects:
    namespace, _, name = text.partition("/")
    try:
        table.namespace(namespace, "--key")
        table.object_name(KEY)(name, "--key")
    except errors.UsageError as exc:
        raise errors.UsageError(
            f"--key {text!r}: must be a namespace and a name, such as {KEY}"
        ) from exc
    place: serving_certificate.ServerObjects = found.ServerObjects(namespace, name)
    return place


def _find_certificates() -> tuple[types.ModuleType, types.ModuleType, types.ModuleType]:
    """Return the modules that need cryptography; `--help` and completion work without it."""
    with errors.needing("cryptography", "kubernetes"):
        from pyvgpu.controller.certs import serving_certificate
        from pyvgpu.controller.scheduler.shell import callers, seal_keys
    return callers, seal_keys, serving_certificate
