"""A certificate from a signer of the cluster, issued once its request is approved."""

import base64
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pyvgpu import errors
from pyvgpu.controller.certs import certificates, from_csr, serving_certificate

PLACE = serving_certificate.ServerObjects("pyvgpu", "pyvgpu-webhook")
NOW = serving_certificate.utc()
DAY = datetime.timedelta(days=1)
NOTHING = certificates.Bundle()


class Signer:
    """A signer that answers the certificate requests in the API server."""

    def __init__(self, api):
        self.api = api
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster")])
        self.authority = self._sign(self.name, self.key.public_key(), NOW + 3650 * DAY, ())

    def _sign(self, subject, key, end, extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - DAY)
            .not_valid_after(end)
        )
        for extension in extensions:
            builder = builder.add_extension(extension.value, extension.critical)
        made = builder.sign(self.key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM).decode()

    def authorities(self):
        return self.authority

    def requests(self):
        return self.api.under(from_csr.REQUESTS)

    def asked(self, request):
        text = base64.b64decode(request["spec"]["request"])
        return x509.load_pem_x509_csr(text)

    def approve(self, end=NOW + 30 * DAY, host=None):
        (request,) = (candidate for candidate in self.requests() if "status" not in candidate)
        asked = self.asked(request)
        names = (
            asked.extensions
            if host is None
            else [
                x509.Extension(
                    x509.SubjectAlternativeName.oid,
                    False,
                    x509.SubjectAlternativeName([x509.DNSName(host)]),
                )
            ]
        )
        certificate = self._sign(asked.subject, asked.public_key(), end, names)
        self.answer(request, certificate=base64.b64encode(certificate.encode()).decode())

    def answer(self, request, **status):
        path = f"{from_csr.REQUESTS}/{request['metadata']['name']}"
        self.api.put(path, {**request, "status": status})


@pytest.fixture
def signer(small):
    small[0].put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    return Signer(small[0])


@pytest.fixture
def source(small, signer):
    def make(name="example.com/signer", days=0):
        now = lambda: NOW + days * DAY  # noqa: E731
        return from_csr.source(small[1], PLACE, name, signer.authorities, now)

    return make


def waits(source, served=NOTHING):
    with pytest.raises(errors.UnavailableError, match="kubectl certificate approve") as caught:
        source(served)
    return str(caught.value)


def test_it_makes_one_request_and_serves_the_signed_certificate(source, signer):
    waits(source())
    waits(source())  # from another replica
    (request,) = signer.requests()
    asked = signer.asked(request)
    names = asked.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [PLACE.host]
    assert asked.subject.rfc4514_string() == f"CN={PLACE.host}"
    assert request["spec"]["usages"] == ["digital signature", "server auth"]
    signer.approve()
    bundle = source()(NOTHING)
    assert bundle.authorities == signer.authority
    assert serving_certificate.context_of(bundle)
    assert source()(NOTHING) == bundle
    assert "next.key" not in signer.api.read(PLACE.secret)["data"]


def test_the_kubelets_signer_gets_a_request_with_a_node_subject(source, signer):
    waits(source("kubernetes.io/kubelet-serving"))
    asked = signer.asked(signer.requests()[0])
    assert asked.subject.rfc4514_string() == "CN=system:node:pyvgpu-webhook,O=system:nodes"


def test_the_old_certificate_is_served_while_the_next_request_is_pending(source, signer):
    waits(source())
    signer.approve()
    first = source()(NOTHING)
    later = source(days=25)
    assert later(first) == first
    signer.approve(NOW + 60 * DAY)
    second = later(first)
    assert second.certificate != first.certificate
    assert second.key != first.key


@pytest.mark.parametrize("condition", ["Denied", "Failed"])
def test_a_refused_request_is_made_again(source, signer, condition):
    waits(source())
    (request,) = signer.requests()
    signer.answer(request, conditions=[{"type": condition}])
    with pytest.raises(errors.UnavailableError, match="was denied"):
        source()(NOTHING)
    waits(source())
    assert len(signer.requests()) == 2


def test_a_certificate_of_another_name_is_not_served(source, signer):
    waits(source())
    signer.approve(host="other.example")
    with pytest.raises(
        errors.DataError, match="unusable certificate: it must be for pyvgpu-webhook"
    ):
        source()(NOTHING)
    waits(source())
