"""What the commands that live in a cluster have in common."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import ending, errors, log, pages
from pyvgpu.controller.sidecar import config, settings
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    import argparse
    import types

    from pyvgpu.controller import metrics

NAMESPACE = "pyvgpu"
AGENTS = "pyvgpu-agent"  # the namespace of the agents


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options of everything that decides about sidecars."""
    add = parser.add_argument
    add("--config", metavar="FILE", help="the settings, in YAML (none: as they are)")
    add(
        "--fast-exit-image",
        metavar="IMAGE",
        help=f"the image that ends at once with 0 ({settings.FastExit().image})",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of programs that live in a cluster and decide about sidecars."""
    add_place(parser)
    add_settings(parser)


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that all programs have that live in a cluster."""
    add_kubeconfig(parser)
    add = parser.add_argument
    add(
        "--namespace",
        metavar="NAME",
        help=f"where our leases are (in a pod: the pod's; else {NAMESPACE})",
    )
    add(
        "--listen",
        metavar="[ADDRESS:]PORT",
        help="where /metrics, /healthz and /readyz are answered (nowhere; ADDRESS: 127.0.0.1)",
    )
    add("--verbose", action="store_true", help="say why nothing is done, too")


def add_kubeconfig(parser: argparse.ArgumentParser) -> None:
    """Add the option of everything that speaks to the API server."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="how to reach the API server (in a pod: as the pod)",
    )


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the options of what a person asks a cluster, as kubectl has them."""
    add_kubeconfig(parser)
    parser.add_argument(
        "--context", metavar="NAME", help="the kubeconfig's context to use (its current one)"
    )


def add_agents(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the option of what asks agents; *more* says which they are."""
    parser.add_argument(
        "--agent-namespace",
        metavar="NAME",
        default=AGENTS,
        help=f"where the agents are{more} (%(default)s)",
    )


def add_served(parser: argparse.ArgumentParser, name: str, of: str, who: str) -> None:
    """Add the options of what answers by HTTPS: *of* what NAME is the name, *who* asks."""
    add = parser.add_argument
    add("--name", metavar="NAME", default=name, help=f"of its {of} (%(default)s)")
    add("--serve", metavar="ADDRESS", default="0.0.0.0:8443", help=f"where {who} (%(default)s)")


def find_metrics() -> types.ModuleType:
    """Return the module that counts, which needs a library that not every command needs."""
    with errors.needing("prometheus-client", "kubernetes"):
        from pyvgpu.controller import metrics
    return metrics


def connect(options: argparse.Namespace, meter: metrics.Meter) -> apiserver.ApiServer:
    """Begin to log, and connect to the API server."""
    if options.listen is not None:
        pages.read_address(options.listen)
    log.begin(options.verbose)
    for noisy in ("urllib3", "kubernetes"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # What is read from the API server has no cycles: looking for some takes as long as reading it.
    gc.set_threshold(50_000, 20, 100)
    # What the server puts off goes back into the work queues.
    return apiserver.connect(options.kubeconfig, meter.asked, patience=0.0)


def namespace(options: argparse.Namespace) -> str:
    """Return the namespace of our leases."""
    if options.namespace:
        return str(options.namespace)
    return apiserver.own_namespace() or NAMESPACE


def sidecar_settings(options: argparse.Namespace) -> settings.Settings:
    """Return what the file of settings says, and what the options say instead."""
    found = config.load(Path(options.config)) if options.config else settings.Settings()
    if options.fast_exit_image:
        image = dataclasses.replace(found.fast_exit, image=options.fast_exit_image)
        found = dataclasses.replace(found, fast_exit=image)
    return found


def identity() -> str:
    """Return a name that no other process has."""
    return f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"


def stop_on_signals() -> threading.Event:
    """Return what is set when this process is told to end."""
    stop = threading.Event()
    ending.on_signals(stop.set)
    return stop
