"""Serving certificate from the cluster's own signer, by a CertificateSigningRequest.

The key is generated here and never leaves the Secret that all replicas share. While a request
awaits approval its key is stored beside the one in use, so that any replica can take the signed
certificate. The signer ``kubernetes.io/kubelet-serving`` signs only for node subjects, and for
any host name; a request to another signer has the Service's name as subject.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.controller.certs import certificates, serving_certificate
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable

log = logging.getLogger(__name__)

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
KUBELET_SIGNER = "kubernetes.io/kubelet-serving"
NEXT = "next.key"  # in the Secret: the key of the pending request
_USAGES = ("digital signature", "server auth")
_ABSENT, _CONFLICT = 404, 409


def source(
    api: apiserver.ApiServer,
    place: serving_certificate.ServerObjects,
    signer: str,
    authorities: Callable[[], str],
    now: Callable[[], datetime.datetime] = serving_certificate.utc,
) -> serving_certificate.Source:
    """Return the source that requests certificates of *signer*; *authorities* verify them."""
    wanted = certificates.CertificateSpec((place.host,))

    def ask(served: certificates.Bundle) -> certificates.Bundle:
        secret = serving_certificate.read_secret(api, place)
        found = serving_certificate.read_bundle(secret)
        if not certificates.is_due(found, wanted, now()):
            return found
        key = serving_certificate.read_text(secret, NEXT)
        if not certificates.is_key(key):
            # The first replica to write generates the key for all.
            key = certificates.make_key()
            secret = serving_certificate.keep(api, place, secret, found, **{NEXT: key})
        answer = _answer(api, place, signer, key)
        if answer is None:
            if served.certificate:
                return served
            raise errors.UnavailableError(
                f"certificate request {_name(place, key)} waits for approval, for example by "
                f"kubectl certificate approve {_name(place, key)}"
            )
        if not answer:  # another key makes another request
            serving_certificate.keep(api, place, secret, found, **{NEXT: ""})
            raise errors.UnavailableError(
                f"certificate request {_name(place, key)} was denied, or {signer} does not "
                f"sign it; creating another request"
            )
        made = certificates.Bundle(authorities(), answer, key)
        if certificates.is_due(made, wanted, now()):
            serving_certificate.keep(api, place, secret, found, **{NEXT: ""})
            raise errors.DataError(
                f"{signer} signed an unusable certificate: it must be for "
                f"{place.host}, signed by the first configured CA, and not about to expire"
            )
        serving_certificate.keep(api, place, secret, made, **{NEXT: ""})
        log.info("%s signed a certificate for %s", signer, place.host)
        return made

    return ask


def _answer(
    api: apiserver.ApiServer, place: serving_certificate.ServerObjects, signer: str, key: str
) -> str | None:
    """Return the signed certificate; None if it is pending, empty if the request failed."""
    name = _name(place, key)
    try:
        request = api.call("GET", f"{REQUESTS}/{name}")
    except apiserver.ServerError as exc:
        if exc.status != _ABSENT:
            raise
        request = _make(api, place, signer, key)
    status = objects.section(request, "status")
    if signed := status.get("certificate"):
        return base64.b64decode(str(signed)).decode()
    conditions = {entry.get("type") for entry in objects.entries(status, "conditions")}
    return "" if conditions & {"Denied", "Failed"} else None


def _make(
    api: apiserver.ApiServer, place: serving_certificate.ServerObjects, signer: str, key: str
) -> dict[str, Any]:
    name = _name(place, key)
    subject = (place.host, "")
    if signer == KUBELET_SIGNER:
        subject = (f"system:node:{place.name}", "system:nodes")
    text = certificates.request(key, (place.host,), *subject)
    spec = {
        "request": base64.b64encode(text.encode()).decode(),
        "signerName": signer,
        "usages": list(_USAGES),
        "expirationSeconds": int(certificates.LIFE.total_seconds()),
    }
    try:
        made = api.call("POST", REQUESTS, body={"metadata": {"name": name}, "spec": spec})
    except apiserver.ServerError as exc:
        if exc.status != _CONFLICT:
            raise
        return api.call("GET", f"{REQUESTS}/{name}")
    log.warning("certificate request %s waits for approval", name)
    return made


def _name(place: serving_certificate.ServerObjects, key: str) -> str:
    """Return the name of the request for *key*."""
    return f"{place.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
