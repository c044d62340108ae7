"""The web page of `pyvgpu top --serve`: the runs of this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, log
from pyvgpu.cli import termination
from pyvgpu.http import endpoints
from pyvgpu.machine import reservations
from pyvgpu.run import run_metrics, run_page, runs
from pyvgpu.status import site

if TYPE_CHECKING:
    import argparse

    from pyvgpu.http import http_messages


def check_alone(options: argparse.Namespace) -> None:
    """Raise UsageError for options that a page has no use for."""
    for given, option in ((options.once, "--once"), (options.json, "--json")):
        if given:
            raise errors.UsageError(
                f"--serve and {option}: must not both be given; the page's numbers are JSON at "
                f"{site.NUMBERS}"
            )


def serve(text: str, interval: float) -> int:
    """Serve the page at the address *text*, with a sample every *interval* seconds.

    Ends with 0 at SIGINT or SIGTERM.
    """
    host, port = _address(text)
    page = run_page.MachinePage(socket.gethostname(), interval)
    watch, registries = runs.RunWatch(), reservations.Registries()

    seen: tuple[runs.DeviceView, ...] = ()

    def poll() -> None:
        nonlocal seen
        seen = watch.see(runs.sample(registries))
        page.add(seen, time.time())

    def document(asked: endpoints.HttpRequest) -> http_messages.HttpResponse:
        return site.answer(asked, page.document)

    poll()
    with errors.needing("aiohttp", "page"):
        from pyvgpu.http import http_server  # noqa: F401 - imported before anything is printed
    stop = threading.Event()
    termination.on_signals(stop.set)
    pages = endpoints.Pages(lambda: run_metrics.text(seen), more=site.routes(document))
    with endpoints.serving(endpoints.format_address(host, port), pages, "--serve") as actual:
        log.say(
            f"serving http://{endpoints.format_address(host, actual)}{site.PATH}; Ctrl-C ends it"
        )
        if not ipaddress.ip_address(host).is_loopback:
            log.say("every user of the network that can connect to it sees the runs of all users")
        while not stop.wait(interval):
            poll()
    return 0


def _address(text: str) -> tuple[str, int]:
    """Return the IP address and the port to listen on.

    A name must stand for the loopback device: an address that others can reach is only served if
    it is given as such.
    """
    host, port = endpoints.read_address(text, "--serve")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host)), port
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port)}
    except OSError as exc:
        raise errors.UsageError(
            f"--serve {text!r}: {host} has no address: {exc.strerror}; such as 127.0.0.1:{port}"
        ) from exc
    if not all(ipaddress.ip_address(address).is_loopback for address in found):
        addresses = ", ".join(sorted(found))
        raise errors.UsageError(
            f"--serve {text!r}: {host} is {addresses}, which others can reach: must be an address "
            f"of this machine only, such as 127.0.0.1:{port}, or the number of another, such as "
            f"{min(found)}:{port}"
        )
    return min(found), port
