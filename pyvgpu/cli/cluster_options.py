"""Options and start-up that all in-cluster commands share."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, log
from pyvgpu.cli import table, termination
from pyvgpu.controller.sidecar import config, controller_settings
from pyvgpu.http import endpoints
from pyvgpu.kube import apiserver, process_tuning

if TYPE_CHECKING:
    import argparse

    from pyvgpu.kube import api_metrics

NAMESPACE = "pyvgpu"
AGENTS = "pyvgpu-agent"  # the namespace of the agents


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options for the sidecar settings."""
    add = parser.add_argument
    add("--config", metavar="FILE", help="the settings, in YAML (the built-in defaults)")
    add(
        "--fast-exit-image",
        metavar="IMAGE",
        type=table.typed(_image, "--fast-exit-image"),
        help=f"the image that exits with 0 at once ({controller_settings.FastExit().image})",
    )


def _image(text: str, flag: str) -> str:
    if not controller_settings.is_image(text):
        raise errors.UsageError(
            f"{flag} {text[:80]!r}: must be the name of an image, such as "
            "registry.example/pyvgpu/fast-exit:1"
        )
    return text


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of in-cluster programs that handle sidecars."""
    add_place(parser)
    add_settings(parser)


def add_protected(parser: argparse.ArgumentParser) -> None:
    """Add the option that names namespaces whose sidecars stay."""
    parser.add_argument(
        "--protected-namespace",
        metavar="NAME",
        type=table.typed(table.namespace, "--protected-namespace"),
        action="append",
        default=[],
        help="leave the pods of this namespace alone; may be given several times (none)",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that all in-cluster programs have."""
    add_kubeconfig(parser)
    add = parser.add_argument
    add(
        "--namespace",
        metavar="NAME",
        type=table.typed(table.namespace, "--namespace"),
        help=f"the namespace of our leases (in a pod: the pod's; else {NAMESPACE})",
    )
    add(
        "--listen",
        metavar="[ADDRESS:]PORT",
        help="serve /metrics, /healthz and /readyz here (not served; ADDRESS: 127.0.0.1)",
    )
    add("--verbose", action="store_true", help="also log why nothing is done")


def add_kubeconfig(parser: argparse.ArgumentParser) -> None:
    """Add the option of every command that talks to the API server."""
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig file (default: kubectl's, in a pod its service account)",
    )


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add the options of interactive commands, with kubectl's names."""
    add_kubeconfig(parser)
    parser.add_argument(
        "--context", metavar="NAME", help="the kubeconfig context to use (its current one)"
    )


def add_pods_namespace(parser: argparse.ArgumentParser, which: str) -> None:
    """Add the option for the namespace of *which* pods, with kubectl's name."""
    parser.add_argument(
        *("-n", "--namespace"),
        metavar="NAME",
        type=table.typed(table.namespace, "-n"),
        help=f"{which} namespace (the kubeconfig's)",
    )


def add_agents(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the option of commands that query agents; *more* says which pods they are."""
    parser.add_argument(
        "--agent-namespace",
        metavar="NAME",
        type=table.typed(table.namespace, "--agent-namespace"),
        default=AGENTS,
        help=f"the namespace of the agents{more} (%(default)s)",
    )


def add_served(parser: argparse.ArgumentParser, name: str, of: str, clients: str) -> None:
    """Add the options of an HTTPS server: *of* names the objects called NAME."""
    add = parser.add_argument
    add(
        "--name",
        metavar="NAME",
        default=name,
        type=table.typed(table.object_name(name), "--name"),
        help=f"name of its {of} (%(default)s)",
    )
    text = f"address to listen on for {clients} (%(default)s)"
    add("--serve", metavar="ADDRESS", default="[::]:8443", help=text)


def connect(options: argparse.Namespace, meter: api_metrics.ApiMeter) -> apiserver.ApiServer:
    """Start logging, and connect to the API server."""
    if options.listen is not None:
        endpoints.read_address(options.listen)
    log.begin(options.verbose)
    for noisy in ("urllib3", "kubernetes"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    process_tuning.collect_rarely()
    # Requests that the server throttles go back into the work queues.
    return apiserver.connect(options.kubeconfig, meter.asked, retry_seconds=0.0)


def namespace(options: argparse.Namespace) -> str:
    """Return the namespace of our leases."""
    if options.namespace:
        return str(options.namespace)
    return apiserver.own_namespace() or NAMESPACE


def sidecar_settings(options: argparse.Namespace) -> controller_settings.SidecarSettings:
    """Return the settings of the --config file, overridden by the options."""
    found = (
        config.load(Path(options.config))
        if options.config
        else controller_settings.SidecarSettings()
    )
    if options.fast_exit_image:
        image = dataclasses.replace(found.fast_exit, image=options.fast_exit_image)
        found = dataclasses.replace(found, fast_exit=image)
    return dataclasses.replace(found, protected=tuple(getattr(options, "protected_namespace", ())))


def identity() -> str:
    """Return a unique name for this process."""
    return f"{socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"


def stop_on_signals() -> threading.Event:
    """Return an event that is set when a termination signal arrives."""
    stop = threading.Event()
    termination.on_signals(stop.set)
    return stop
