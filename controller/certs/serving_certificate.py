"""Serving certificate: obtain it, publish its CA bundle, and serve with it.

A *source* provides the certificate and is polled every minute. The CAs that signed it are first
written to the webhook configurations, where the API server reads which CAs to trust; only then
the certificate is served. ``own`` is the source without an external issuer: a Secret that all
replicas share, where the first write wins.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import logging
import ssl
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.controller.certs import certificates, upkeep
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Source = Callable[[certificates.Bundle], certificates.Bundle]  # given the bundle served now

log = logging.getLogger(__name__)

SETTLE_SECONDS = 5  # until every API server has read a changed configuration
_ABSENT, _FORBIDDEN = 404, 403
_FIELDS = {
    "authorities": "ca.crt",
    "certificate": "tls.crt",
    "key": "tls.key",
    "signer": "ca.key",
}


def utc() -> datetime.datetime:
    """Return the current time."""
    return datetime.datetime.now(datetime.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class ServerObjects:
    """The objects of a server; its Secret, Service and configurations share one name."""

    namespace: str
    name: str

    @property
    def host(self) -> str:
        """Return the DNS name by which the API server calls the Service."""
        return f"{self.name}.{self.namespace}.svc"

    @property
    def secrets(self) -> str:
        """Return the URL path of Secrets."""
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    @property
    def secret(self) -> str:
        """Return the URL path of the Secret."""
        return f"{self.secrets}/{self.name}"

    @property
    def mutating(self) -> str:
        """Return the URL path of the MutatingWebhookConfiguration."""
        folder = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        return f"{folder}/{self.name}"

    @property
    def validating(self) -> str:
        """Return the URL path of the ValidatingWebhookConfiguration."""
        folder = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        return f"{folder}/{self.name}"


class Identity:
    """The current serving certificate."""

    def __init__(
        self, api: apiserver.ApiServer, source: Source, configurations: Sequence[str] = ()
    ) -> None:
        """Take it from *source*; *configurations* get its CA bundle, and some may not exist."""
        self._api = api
        self._source = source
        self._configurations = tuple(configurations)
        self._bundle = certificates.Bundle()
        self._upkeep = upkeep.Upkeep("certificate")
        self._context: ssl.SSLContext | None = None
        self.ready = threading.Event()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for new connections; only once ``ready``."""
        if self._context is None:
            raise ssl.SSLError("there is no certificate yet")
        return self._context

    def expires(self) -> float:
        """Return when the certificate expires, in seconds since 1970; 0 if there is none."""
        return certificates.expiry(self._bundle).timestamp() if self._context else 0.0

    @property
    def missing(self) -> str:
        """Why it is not ``ready``, for a readiness probe; empty once it is."""
        if self.ready.is_set():
            return ""
        return self._upkeep.missing("there is no certificate yet")

    def run(self, stop: threading.Event) -> None:
        """Maintain the certificate until *stop*."""
        self._upkeep.run(lambda: self.poll(stop), stop)

    def poll(self, stop: threading.Event) -> None:
        """Poll the source once; publish and serve a new certificate."""
        bundle = self._source(self._bundle)
        if bundle.authorities and self._publish(bundle.authorities):
            stop.wait(SETTLE_SECONDS)
        if bundle != self._bundle:
            self._context = context_of(bundle)
            self._bundle = bundle
            self.ready.set()
            log.info("serving with a certificate until %s", certificates.expiry(bundle))

    def _publish(self, authorities: str) -> bool:
        """Make the API server trust *authorities*; return whether anything changed."""
        changes = [self._publish_to(path, authorities) for path in self._configurations]
        return any(changes)

    def _publish_to(self, path: str, authorities: str) -> bool:
        """Write the CA bundle to the hooks of a configuration that do not trust the newest CA.

        The others stay as they are: another replica may have written a newer CA.
        """
        try:
            configuration = self._api.call("GET", path)
        except apiserver.ServerError as exc:
            if exc.status != _ABSENT:
                raise
            return False  # that configuration is not installed
        newest = certificates.newest(authorities)
        encoded = base64.b64encode(authorities.encode()).decode()
        operations = [objects.expect(configuration["metadata"]["uid"], "metadata", "uid")]
        for place, hook in enumerate(objects.entries(configuration, "webhooks")):
            trusted = _text(objects.section(hook, "clientConfig"), "caBundle")
            if newest not in trusted:
                where = ("webhooks", place)
                operations += [
                    objects.expect(hook["name"], *where, "name"),
                    objects.put(encoded, *where, "clientConfig", "caBundle"),
                ]
        if len(operations) == 1:
            return False
        self._api.call("PATCH", path, body=operations, kind=apiserver.JSON_PATCH)
        log.info("wrote our CA bundle to %s", path)
        return True


def own(
    api: apiserver.ApiServer,
    place: ServerObjects,
    *,
    hosts: Sequence[str] = (),
    lasting: bool = False,
    now: Callable[[], datetime.datetime] = utc,
) -> Source:
    """Return the source that issues certificates itself, and stores them in the Secret of *place*.

    *hosts* are names besides that of the Service. *lasting*: one CA signs for ten years.
    """
    wanted = certificates.CertificateSpec((place.host, *hosts), lasting=lasting)

    def make(served: certificates.Bundle) -> certificates.Bundle:
        secret = read_secret(api, place)
        found = read_bundle(secret)
        if not certificates.is_due(found, wanted, now()):
            return found
        older = found if found.authorities else served  # restores an emptied Secret
        made = certificates.make(wanted, now(), older)
        try:
            keep(api, place, secret, made)
        except apiserver.ServerError as exc:
            if exc.status != apiserver.CONFLICT:
                raise
            found = read_bundle(read_secret(api, place))
            if certificates.is_due(found, wanted, now()):
                raise
            return found  # another replica was first: use its certificate
        log.info("issued a certificate for %s", place.host)
        return made

    return make


def read_secret(api: apiserver.ApiServer, place: ServerObjects) -> dict[str, Any]:
    """Return the Secret of *place*; create it if it is absent and permissions allow."""
    try:
        return api.call("GET", place.secret)
    except apiserver.ServerError as exc:
        if exc.status != _ABSENT:
            raise
        absent = exc
    try:
        return api.call("POST", place.secrets, body={"metadata": {"name": place.name}})
    except apiserver.ServerError as exc:
        if exc.status == apiserver.CONFLICT:
            return api.call("GET", place.secret)
        if exc.status == _FORBIDDEN:
            raise absent from exc  # the installation is to create it
        raise


def read_bundle(secret: objects.Object) -> certificates.Bundle:
    """Return the bundle in a Secret; entries that are no text are empty."""
    data = objects.section(secret, "data")
    return certificates.Bundle(**{field: _text(data, name) for field, name in _FIELDS.items()})


def read_text(secret: objects.Object, name: str) -> str:
    """Return the entry *name* of a Secret; empty if it is no text."""
    return _text(objects.section(secret, "data"), name)


def keep(
    api: apiserver.ApiServer,
    place: ServerObjects,
    secret: dict[str, Any],
    bundle: certificates.Bundle,
    **more: str,
) -> dict[str, Any]:
    """Write *bundle* and *more* texts to the Secret as it was read; return the new Secret.

    ServerError, such as a conflict if it has changed since.
    """
    texts = {name: str(getattr(bundle, field)) for field, name in _FIELDS.items()} | more
    data = {**(secret.get("data") or {})}
    for name, text in texts.items():
        data.pop(name, None)
        if text:
            data[name] = base64.b64encode(text.encode()).decode()
    return api.call("PUT", place.secret, body={**secret, "data": data})


def context_of(bundle: certificates.Bundle) -> ssl.SSLContext:
    """Return a TLS context for *bundle*; DataError if it is invalid, OSError if no file opens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # Go clients do not resume sessions by default
    with tempfile.TemporaryDirectory() as folder:  # the library reads only files
        file = Path(folder) / "tls.pem"
        file.touch(0o600)
        file.write_text(bundle.key + bundle.certificate)
        try:
            context.load_cert_chain(file)
        except ssl.SSLError as exc:
            raise errors.DataError(
                f"the certificate and its key cannot be served: {exc.reason or exc}"
            ) from exc
    return context


def _text(parent: objects.Object, name: str) -> str:
    """Decode the base64 member *name*; empty if it is no text."""
    try:
        return base64.b64decode(str(parent.get(name) or ""), validate=True).decode()
    except ValueError:
        return ""
