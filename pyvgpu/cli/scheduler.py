"""`pyvgpu scheduler`: chooses the node and the devices of pods, asked by kube-scheduler."""

from __future__ import annotations

import dataclasses
import logging
import os
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, pages
from pyvgpu.cli import cluster, scheduling, serving, table
from pyvgpu.controller import leases
from pyvgpu.controller.scheduler import book
from pyvgpu.controller.scheduler.shell import desk, leading, term

if TYPE_CHECKING:
    import argparse
    import types

    from pyvgpu.controller import identity

log = logging.getLogger(__name__)

NAME = leading.LEASE
KEY = f"{cluster.AGENTS}/pyvgpu-placement"
DRAIN_SECONDS = 2  # until kube-scheduler has gone to another

_DESCRIPTION = """\
Answer kube-scheduler, which asks as of an extender: which nodes have a device with room for a
pod, how good each is, and who has to go for one of higher priority; and bind pods, with the
devices that they get, sealed for the agents of their nodes (device-plugin --placement extender).
Of several that run one answers: it holds a lease, and its pod a label that a Service selects. The
certificate is made and renewed here: it lies in the Secret NAME, beside it what kube-scheduler
needs: ca.crt, and client.crt and client.key, by which it is known.
"""
_EXAMPLES = """\
examples:
  pyvgpu scheduler
  pyvgpu scheduler --policy spread --listen 0.0.0.0:9473
  pyvgpu scheduler --client-authority /etc/kubernetes/ca.crt --client-name system:kube-scheduler
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu scheduler`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    cluster.add_served(parser, NAME, "Service, Secret and lease", "kube-scheduler asks")
    add = parser.add_argument
    add(
        "--key",
        metavar="NAMESPACE/NAME",
        default=KEY,
        help="the Secret with the key that seals choices, made if it has none (%(default)s)",
    )
    scheduling.add_policy(parser)
    add(
        "--resync",
        metavar="SECONDS",
        default=f"{book.Settings().resync_seconds:g}",
        help="between comparisons of what it knows with what the API server has (%(default)s)",
    )
    add(
        "--client-authority",
        metavar="FILE",
        help="whose certificates callers show (our own; it signed client.crt in Secret NAME)",
    )
    add(
        "--client-name",
        metavar="NAME",
        action="append",
        default=[],
        help="answer only callers of this common name; may be given again (any)",
    )
    add(
        "--any-client",
        action="store_true",
        help="answer every client; one that can reach it can then bind and evict any pod",
    )
    add(
        "--pod",
        metavar="NAME",
        default=os.environ.get("POD_NAME", ""),
        help="the pod that this is, which gets the leader's label ($POD_NAME)",
    )
    serving.add_options(parser)
    cluster.add_place(parser)


def run(options: argparse.Namespace) -> int:
    """Answer until told to end, while the lease is held."""
    address = pages.read_address(options.serve, "--serve")
    settings = dataclasses.replace(
        scheduling.read_settings(options),
        resync_seconds=table.seconds(1, 86_400, 60)(options.resync, "--resync"),
    )
    trusted = _read_authority(options)
    own_callers = not (trusted or options.any_client)  # they show what our authority has signed
    meter = cluster.find_metrics().SchedulerMeter()
    callers, keys, identity = _find_certificates()
    with errors.needing("aiohttp", "kubernetes"):
        from pyvgpu.controller import https
    key_place = _read_place(identity, options.key)
    api = cluster.connect(options, meter)
    namespace = cluster.namespace(options)
    stop = cluster.stop_on_signals()
    place = identity.Place(namespace, options.name)
    known = identity.Identity(api, serving.source(options, api, place, lasting=True))
    sealing = keys.Keys(api, key_place)
    asking = callers.Callers(api, place)
    wrap = callers.guard(lambda: trusted or asking.authorities())
    lease = leases.Lease(api, namespace, options.name, cluster.identity())
    served = desk.Desk(meter.failures.inc)
    meter.watch(served, lambda: lease.is_held, known.expires)

    def begin() -> term.Term:
        own = leading.OwnPod(api, namespace, options.pod)
        return term.Term(api, settings, sealing.all, own, meter, lease.is_held_for)

    def not_ready() -> str:
        if stop.is_set():
            return "it ends"
        callers_missing = asking.missing if own_callers else ""
        return known.missing or callers_missing or sealing.missing

    def wrong() -> str:
        return "" if served.term is None else served.term.alive

    shown = pages.Pages(meter.text, wrong, not_ready)
    with pages.serving(options.listen, shown):
        try:
            listener = https.Server(
                address,
                served.routes,
                known.context if options.any_client else lambda: wrap(known.context()),
                meter.answered,
                most_bytes=desk.MOST_BYTES,
                most_connections=desk.MOST_CONNECTIONS,
                clients=options.client_name,
                quick=desk.QUICK,
            )
        except OSError as exc:
            raise errors.UnavailableError(f"--serve {options.serve}: {exc.strerror}") from exc
        # It is there before we are ready, which is a matter of those.
        for part in (known.run, sealing.run, *([asking.run] if own_callers else [])):
            threading.Thread(target=part, args=(stop,), daemon=True).start()
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        while not sealing.ready.wait(0.2) and not stop.is_set():
            pass
        while lease.wait(stop):
            log.info("holds lease %s/%s", namespace, options.name)
            _lead(served, begin(), lease, stop)
            if not stop.is_set():
                log.warning(
                    "lost lease %s/%s: another replica leads, or none", namespace, options.name
                )
        listener.draining = True
        time.sleep(DRAIN_SECONDS)
        listener.shutdown()
        listener.server_close()
    return 0


def _lead(served: desk.Desk, one: term.Term, lease: leases.Lease, stop: threading.Event) -> None:
    """Let *one* answer as long as the lease is kept."""
    over = threading.Event()
    thread = threading.Thread(target=one.run, args=(over,), daemon=True)
    served.begin(one)  # it answers once it may, before kube-scheduler is let come
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


def _read_authority(options: argparse.Namespace) -> str:
    """Return the certificates that an option names, an empty text if none does."""
    file = options.client_authority
    if options.any_client and (file or options.client_name):
        raise errors.UsageError(
            "--any-client: makes no sense with --client-authority or --client-name, which name "
            "the clients; leave it out"
        )
    if file is None:
        if not (options.any_client or serving.makes_its_own(options)):
            raise errors.UsageError(
                "--certificate-folder, --certificate-signer: another program signs, and none here "
                "makes a certificate for callers: --client-authority FILE says whose they show, "
                "such as /etc/kubernetes/pki/ca.crt"
            )
        return ""
    try:
        trusted = Path(file).read_text()
        ssl.create_default_context(cadata=trusted)
    except (OSError, ValueError) as exc:  # an SSLError is an OSError
        raise errors.DataError(
            f"--client-authority {file}: {exc}; must be certificates in PEM"
        ) from exc
    return trusted


def _read_place(found: types.ModuleType, text: str) -> identity.Place:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise errors.UsageError(f"--key {text!r}: must be a namespace and a name, such as {KEY}")
    place: identity.Place = found.Place(namespace, name)
    return place


def _find_certificates() -> tuple[types.ModuleType, types.ModuleType, types.ModuleType]:
    """Return the modules that need cryptography, which `--help` and completion do without."""
    with errors.needing("cryptography", "kubernetes"):
        from pyvgpu.controller import identity
        from pyvgpu.controller.scheduler.shell import callers, keys
    return callers, keys, identity
