"""By what certificate the webhook is known: kept in a Secret, told to the API server, renewed.

The Secret is of all replicas, and who writes it first wins. Each replica looks at it every minute:
it makes a new bundle when one is due, puts the authorities into the webhook's configuration where
they are not, and only after that serves with the certificate.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import logging
import random
import ssl
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu.controller import objects, server
from pyvgpu.controller.sidecar import backoff
from pyvgpu.controller.webhook import certificates

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

LOOK_SECONDS = 60
SETTLE_SECONDS = 5  # from a change of the configuration until every API server knows of it
_CONFLICTS = frozenset({409, 422})
_FIELDS = {"authorities": "ca.crt", "certificate": "tls.crt", "key": "tls.key"}


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where everything of the webhook is; its Secret, Service and configuration have one name."""

    namespace: str
    name: str

    @property
    def host(self) -> str:
        """Return by what name the API server calls the Service."""
        return f"{self.name}.{self.namespace}.svc"

    @property
    def secret(self) -> str:
        """Return where the Secret is, in a URL."""
        return f"/api/v1/namespaces/{self.namespace}/secrets/{self.name}"

    @property
    def configuration(self) -> str:
        """Return where the configuration is, in a URL."""
        folder = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        return f"{folder}/{self.name}"


class Identity:
    """The certificate to serve with now."""

    def __init__(
        self,
        api: server.Server,
        place: Place,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._api = api
        self._place = place
        self._now = now
        self._bundle = certificates.Bundle("", "", "")
        self._context: ssl.SSLContext | None = None
        self.ready = threading.Event()

    def context(self) -> ssl.SSLContext:
        """Return what new connections are served with; only once it is ``ready``."""
        if self._context is None:
            raise ssl.SSLError("there is no certificate yet")
        return self._context

    def expires(self) -> float:
        """Return when the certificate ends, in seconds since 1970; 0 if there is none."""
        return certificates.expiry(self._bundle).timestamp() if self._context else 0.0

    def run(self, stop: threading.Event) -> None:
        """Keep it until *stop*."""
        attempt = 0
        while not stop.is_set():
            try:
                self.look(stop)
            except server.ServerError as exc:
                attempt += 1
                log.warning("did not look after the certificate: %s", exc)
                seconds = backoff.delay(attempt, random.random(), exc.status, exc.retry_after)  # noqa: S311
                stop.wait(seconds)
            else:
                attempt = 0
                stop.wait(LOOK_SECONDS)

    def look(self, stop: threading.Event) -> None:
        """Do once what is due."""
        bundle = self._agree()
        if self._tell(bundle.authorities):
            stop.wait(SETTLE_SECONDS)
        if bundle != self._bundle:
            self._context = _context(bundle)
            self._bundle = bundle
            self.ready.set()
            log.info("serving with a certificate until %s", certificates.expiry(bundle))

    def _agree(self) -> certificates.Bundle:
        """Return the bundle of all replicas, which is made here if it is due."""
        while True:
            secret = self._api.call("GET", self._place.secret)
            found = _read(secret)
            if not certificates.is_due(found, self._place.host, self._now()):
                return found
            older = found.authorities or self._bundle.authorities  # of an emptied Secret: ours
            made = certificates.make(self._place.host, self._now(), older)
            body = {**secret, "data": {**(secret.get("data") or {}), **_data(made)}}
            try:
                self._api.call("PUT", self._place.secret, body=body)
            except server.ServerError as exc:
                if exc.status not in _CONFLICTS:
                    raise
                continue  # another replica was first: what it made is ours
            log.info("made a certificate for %s", self._place.host)
            return made

    def _tell(self, authorities: str) -> bool:
        """Let the API server trust *authorities*; tell whether that was news.

        Where it trusts the newest, another replica may know of a newer one: that stays.
        """
        configuration = self._api.call("GET", self._place.configuration)
        newest = certificates.newest(authorities)
        told = base64.b64encode(authorities.encode()).decode()
        operations = [objects.expect(configuration["metadata"]["uid"], "metadata", "uid")]
        for place, hook in enumerate(objects.entries(configuration, "webhooks")):
            trusted = _text(objects.section(hook, "clientConfig"), "caBundle")
            if newest not in trusted:
                path = ("webhooks", place)
                operations += [
                    objects.expect(hook["name"], *path, "name"),
                    objects.put(told, *path, "clientConfig", "caBundle"),
                ]
        if len(operations) == 1:
            return False
        self._api.call("PATCH", self._place.configuration, body=operations, kind=server.JSON_PATCH)
        log.info("the API server is to trust our authorities for %s", self._place.host)
        return True


def _read(secret: objects.Object) -> certificates.Bundle:
    data = objects.section(secret, "data")
    return certificates.Bundle(**{field: _text(data, name) for field, name in _FIELDS.items()})


def _text(parent: objects.Object, name: str) -> str:
    """Return what is called *name* in base64; what is no text is empty."""
    try:
        return base64.b64decode(str(parent.get(name) or ""), validate=True).decode()
    except ValueError:
        return ""


def _data(bundle: certificates.Bundle) -> dict[str, Any]:
    return {
        name: base64.b64encode(str(getattr(bundle, field)).encode()).decode()
        for field, name in _FIELDS.items()
    }


def _context(bundle: certificates.Bundle) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # the library reads files alone
        file = Path(folder) / "tls.pem"
        file.touch(0o600)
        file.write_text(bundle.key + bundle.certificate)
        context.load_cert_chain(file)
    return context
