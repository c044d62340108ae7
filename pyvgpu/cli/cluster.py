"""What the commands that live in a cluster have in common."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu.controller import server
from pyvgpu.controller.sidecar import settings

if TYPE_CHECKING:
    import argparse

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
NAMESPACE = "pyvgpu"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all of them have."""
    add = parser.add_argument
    add("--kubeconfig", metavar="FILE", help="how to reach the API server (in a pod: as the pod)")
    add(
        "--namespace",
        metavar="NAME",
        help=f"where our leases are (in a pod: the pod's; else {NAMESPACE})",
    )
    add(
        "--fast-exit-image",
        metavar="IMAGE",
        default=settings.FastExit().image,
        help="the image that ends at once with 0 (%(default)s)",
    )
    add("--verbose", action="store_true", help="say why nothing is done, too")


def connect(options: argparse.Namespace) -> server.Server:
    """Begin to log, and connect to the API server."""
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for noisy in ("urllib3", "kubernetes"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return server.connect(options.kubeconfig)


def namespace(options: argparse.Namespace) -> str:
    """Return the namespace of our leases."""
    if options.namespace:
        return str(options.namespace)
    return _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else NAMESPACE


def sidecar_settings(options: argparse.Namespace) -> settings.Settings:
    """Return what of the settings the options say."""
    return settings.Settings(fast_exit=settings.FastExit(image=options.fast_exit_image))


def identity() -> str:
    """Return a name that no other process has."""
    return f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"


def stop_on_signals() -> threading.Event:
    """Return what is set when this process is told to end."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
