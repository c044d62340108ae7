"""Authenticate callers of the extender by client certificates.

A process that reaches the verbs could bind pods past every rule, or have others evicted. So each
caller must present a certificate. The one for kube-scheduler is issued here, by the CA that signs
our server certificate, and stored beside it in the Secret. If its files are mounted from the
Secret, kube-scheduler re-reads them for new connections, so it can be short-lived and is renewed;
if it was copied into a configuration file, it must be long-lived.
"""

from __future__ import annotations

import functools
import logging
import ssl
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.certs import certificates, serving_certificate, upkeep

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable

    from pyvgpu.kube import apiserver

log = logging.getLogger(__name__)

CERTIFICATE, KEY = "client.crt", "client.key"  # in the Secret
NAME = "kube-scheduler"


class Callers:
    """Maintains the client certificate, and knows the CA that signs it."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        place: serving_certificate.ServerObjects,
        now: Callable[[], datetime.datetime] = serving_certificate.utc,
        life: datetime.timedelta | None = None,
    ) -> None:
        """Issue certificates that last for *life*, and renew them; None: as long as the CA."""
        self._api = api
        self._place = place
        self._now = now
        self._life = life
        self._authorities = ""
        self._upkeep = upkeep.Upkeep("client certificate")
        self.ready = threading.Event()

    def authorities(self) -> str:
        """Return the CA bundle that verifies callers; only once ``ready``."""
        return self._authorities

    @property
    def missing(self) -> str:
        """Why it is not ``ready``, for a readiness probe; empty once it is."""
        if self.ready.is_set():
            return ""
        return self._upkeep.missing("there is no client certificate yet")

    def run(self, stop: threading.Event) -> None:
        """Maintain the certificate until *stop*."""
        self._upkeep.run(self.poll, stop)

    def poll(self) -> None:
        """Issue the certificate if it is due; UnavailableError while that is impossible."""
        secret = serving_certificate.read_secret(self._api, self._place)
        bundle = serving_certificate.read_bundle(secret)
        if not bundle.signer:
            raise errors.UnavailableError("the server's own certificate must be made first")
        certificate, key = (
            serving_certificate.read_text(secret, name) for name in (CERTIFICATE, KEY)
        )
        if not certificates.is_client(bundle, certificate, key, self._now(), self._life):
            try:
                made = certificates.client(bundle, NAME, self._now(), self._life)
            except ValueError as exc:
                raise errors.UnavailableError(
                    f"another authority must be made first: {exc}"
                ) from exc
            more = dict(zip((CERTIFICATE, KEY), made, strict=True))
            serving_certificate.keep(self._api, self._place, secret, bundle, **more)
            log.info("issued a certificate for %s", NAME)
        self._authorities = bundle.authorities
        self.ready.set()


def guard(authorities: Callable[[], str]) -> Callable[[ssl.SSLContext], ssl.SSLContext]:
    """Return a function that makes a context require client certificates of *authorities*."""

    @functools.lru_cache(maxsize=2)
    def ask(context: ssl.SSLContext, trusted: str) -> ssl.SSLContext:
        context.load_verify_locations(cadata=trusted)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    return lambda context: ask(context, authorities())
