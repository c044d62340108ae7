"""Who may ask: whoever reaches the verbs could bind pods past every rule, or have others evicted.

So each caller shows a certificate. The one for kube-scheduler is made here, by the authority that
signs our own, and lies beside it in the Secret: kube-scheduler reads it once, so it lasts.
"""

from __future__ import annotations

import functools
import logging
import ssl
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller import certificates, identity

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable

    from pyvgpu.controller import server

log = logging.getLogger(__name__)

CERTIFICATE, KEY = "client.crt", "client.key"  # in the Secret
NAME = "kube-scheduler"
LOOK_SECONDS = 60
_AGAIN_SECONDS = 0.2


class Callers:
    """Keeps the certificate of those who may ask, and says by whom it is signed."""

    def __init__(
        self,
        api: server.Server,
        place: identity.Place,
        now: Callable[[], datetime.datetime] = identity.utc,
    ) -> None:
        self._api = api
        self._place = place
        self._now = now
        self._authorities = ""
        self.ready = threading.Event()

    def authorities(self) -> str:
        """Return who signs certificates of callers; only once they are ``ready``."""
        return self._authorities

    def run(self, stop: threading.Event) -> None:
        """Look after it until *stop*."""
        while not stop.is_set():
            done = False
            try:
                done = self.look()
            except errors.PyVgpuError as exc:
                log.warning("did not look after the certificate of callers: %s", exc)
            stop.wait(LOOK_SECONDS if done else _AGAIN_SECONDS)

    def look(self) -> bool:
        """Make it where it is not; tell whether it is there."""
        secret = identity.read_secret(self._api, self._place)
        bundle = identity.read_bundle(secret)
        if not bundle.signer:
            return False  # our own is to be made first
        texts = [identity.read_text(secret, name) for name in (CERTIFICATE, KEY)]
        if not certificates.is_client(bundle, texts[0], texts[1], self._now()):
            try:
                made = certificates.client(bundle, NAME, self._now())
            except ValueError:
                return False  # another authority is to be made first
            more = dict(zip((CERTIFICATE, KEY), made, strict=True))
            if not identity.keep(self._api, self._place, secret, bundle, **more):
                return False  # another replica was first: what it made is read next
            log.info("made a certificate for %s", NAME)
        self._authorities = bundle.authorities
        self.ready.set()
        return True


def guard(authorities: Callable[[], str]) -> Callable[[ssl.SSLContext], ssl.SSLContext]:
    """Return what lets a server's context ask for certificates that *authorities* have signed."""

    @functools.lru_cache(maxsize=2)
    def ask(context: ssl.SSLContext, trusted: str) -> ssl.SSLContext:
        context.load_verify_locations(cadata=trusted)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    return lambda context: ask(context, authorities())
