"""By what certificate a server of ours is known: where it comes from, and who is told of it.

A *source* gives the certificate, and is looked at every minute. The authorities that signed it
are put into the configurations where the API server reads whom it is to trust, and only after
that it is served. ``own`` is the source that needs nobody: a Secret that all replicas share, and
who writes it first wins.
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
from pyvgpu.controller import certificates, objects, upkeep
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Source = Callable[[certificates.Bundle], certificates.Bundle]  # from what is served now

log = logging.getLogger(__name__)

SETTLE_SECONDS = 5  # from a change of the configuration until every API server knows of it
_ABSENT, _FORBIDDEN = 404, 403
_FIELDS = {
    "authorities": "ca.crt",
    "certificate": "tls.crt",
    "key": "tls.key",
    "signer": "ca.key",
}


def utc() -> datetime.datetime:
    """Return what time it is."""
    return datetime.datetime.now(datetime.UTC)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where everything of a server is; its Secret, Service and configurations have one name."""

    namespace: str
    name: str

    @property
    def host(self) -> str:
        """Return by what name the API server calls the Service."""
        return f"{self.name}.{self.namespace}.svc"

    @property
    def secrets(self) -> str:
        """Return where Secrets are, in a URL."""
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    @property
    def secret(self) -> str:
        """Return where the Secret is, in a URL."""
        return f"{self.secrets}/{self.name}"

    @property
    def mutating(self) -> str:
        """Return where the MutatingWebhookConfiguration is, in a URL."""
        folder = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        return f"{folder}/{self.name}"

    @property
    def validating(self) -> str:
        """Return where the ValidatingWebhookConfiguration is, in a URL."""
        folder = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        return f"{folder}/{self.name}"


class Identity:
    """The certificate to serve with now."""

    def __init__(self, api: apiserver.ApiServer, source: Source, told: Sequence[str] = ()) -> None:
        """Take it from *source*; *told* are the configurations, of which some may not be there."""
        self._api = api
        self._source = source
        self._told = tuple(told)
        self._bundle = certificates.Bundle()
        self._upkeep = upkeep.Upkeep("certificate")
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

    @property
    def missing(self) -> str:
        """Why it is not ``ready``, for a readiness probe; empty once it is."""
        if self.ready.is_set():
            return ""
        return self._upkeep.missing("there is no certificate yet")

    def run(self, stop: threading.Event) -> None:
        """Keep it until *stop*."""
        self._upkeep.run(lambda: self.look(stop), stop)

    def look(self, stop: threading.Event) -> None:
        """Do once what is due."""
        bundle = self._source(self._bundle)
        if bundle.authorities and self._tell(bundle.authorities):
            stop.wait(SETTLE_SECONDS)
        if bundle != self._bundle:
            self._context = context_of(bundle)
            self._bundle = bundle
            self.ready.set()
            log.info("serving with a certificate until %s", certificates.expiry(bundle))

    def _tell(self, authorities: str) -> bool:
        """Let the API server trust *authorities*; tell whether that was news."""
        news = [self._tell_one(path, authorities) for path in self._told]
        return any(news)

    def _tell_one(self, path: str, authorities: str) -> bool:
        """Put them where they are not.

        Where the newest is trusted, another replica may know of a newer one: that stays.
        """
        try:
            configuration = self._api.call("GET", path)
        except apiserver.ServerError as exc:
            if exc.status != _ABSENT:
                raise
            return False  # nobody has installed that part
        newest = certificates.newest(authorities)
        told = base64.b64encode(authorities.encode()).decode()
        operations = [objects.expect(configuration["metadata"]["uid"], "metadata", "uid")]
        for place, hook in enumerate(objects.entries(configuration, "webhooks")):
            trusted = _text(objects.section(hook, "clientConfig"), "caBundle")
            if newest not in trusted:
                where = ("webhooks", place)
                operations += [
                    objects.expect(hook["name"], *where, "name"),
                    objects.put(told, *where, "clientConfig", "caBundle"),
                ]
        if len(operations) == 1:
            return False
        self._api.call("PATCH", path, body=operations, kind=apiserver.JSON_PATCH)
        log.info("the API server is to trust our authorities in %s", path)
        return True


def own(
    api: apiserver.ApiServer,
    place: Place,
    *,
    hosts: Sequence[str] = (),
    lasting: bool = False,
    now: Callable[[], datetime.datetime] = utc,
) -> Source:
    """Return the source that makes certificates itself, and keeps them in the Secret of *place*.

    *hosts* are names besides that of the Service. *lasting*: one authority signs for ten years.
    """
    wanted = certificates.Wanted((place.host, *hosts), lasting=lasting)

    def make(served: certificates.Bundle) -> certificates.Bundle:
        secret = read_secret(api, place)
        found = read_bundle(secret)
        if not certificates.is_due(found, wanted, now()):
            return found
        older = found if found.authorities else served  # of an emptied Secret: ours
        made = certificates.make(wanted, now(), older)
        try:
            keep(api, place, secret, made)
        except apiserver.ServerError as exc:
            if exc.status != apiserver.CONFLICT:
                raise
            found = read_bundle(read_secret(api, place))
            if certificates.is_due(found, wanted, now()):
                raise
            return found  # another replica was first: its certificate is ours
        log.info("made a certificate for %s", place.host)
        return made

    return make


def read_secret(api: apiserver.ApiServer, place: Place) -> dict[str, Any]:
    """Return the Secret of *place*, which is made where it is not and where we may."""
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
            raise absent from exc  # the installation makes it
        raise


def read_bundle(secret: objects.Object) -> certificates.Bundle:
    """Return what a Secret says; what is no text in it is empty."""
    data = objects.section(secret, "data")
    return certificates.Bundle(**{field: _text(data, name) for field, name in _FIELDS.items()})


def read_text(secret: objects.Object, name: str) -> str:
    """Return what is called *name* in a Secret; what is no text is empty."""
    return _text(objects.section(secret, "data"), name)


def keep(
    api: apiserver.ApiServer,
    place: Place,
    secret: dict[str, Any],
    bundle: certificates.Bundle,
    **more: str,
) -> dict[str, Any]:
    """Put *bundle* and *more* texts into the Secret as it was read, and return it as it is then.

    ServerError, such as a conflict where it has changed since.
    """
    texts = {name: str(getattr(bundle, field)) for field, name in _FIELDS.items()} | more
    data = {**(secret.get("data") or {})}
    for name, text in texts.items():
        data.pop(name, None)
        if text:
            data[name] = base64.b64encode(text.encode()).decode()
    return api.call("PUT", place.secret, body={**secret, "data": data})


def context_of(bundle: certificates.Bundle) -> ssl.SSLContext:
    """Return what serves with *bundle*; DataError if it is none, OSError where no file opens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # programs in Go do not resume sessions by themselves
    with tempfile.TemporaryDirectory() as folder:  # the library reads files alone
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
    """Return what is called *name* in base64; what is no text is empty."""
    try:
        return base64.b64decode(str(parent.get(name) or ""), validate=True).decode()
    except ValueError:
        return ""
