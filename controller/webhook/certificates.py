"""Certificates of our own for the webhook: an authority, and a server certificate signed by it.

The authority's key is thrown away once it has signed: a renewal makes another authority. The API
server is told of the new one beside the old before anybody serves with it, so that no admission
fails in between. All times are the caller's.
"""

from __future__ import annotations

import dataclasses
import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=90)
EARLIER = datetime.timedelta(hours=1)  # valid from so long before now: clocks differ
MOST_AUTHORITIES = 4  # that the API server is told of


@dataclasses.dataclass(frozen=True, slots=True)
class Bundle:
    """PEM texts; an invalid one is one that is due."""

    authorities: str  # whom the API server is to trust, the newest first
    certificate: str
    key: str


def make(
    host: str, now: datetime.datetime, older: str = "", life: datetime.timedelta = LIFE
) -> Bundle:
    """Make a bundle for a server called *host*; what of *older* is valid is trusted on."""
    begin, end = now - EARLIER, now + life
    signer = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pyvgpu webhook authority")])
    authority = (
        _builder(name, name, signer.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(signer, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    certificate = (
        _builder(subject, name, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    kept = [authority, *(it for it in _read(older) if it.not_valid_after_utc > now)]
    return Bundle(
        "".join(map(_pem, kept[:MOST_AUTHORITIES])),
        _pem(certificate),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )


def expiry(bundle: Bundle) -> datetime.datetime:
    """Return when the server certificate ends; ValueError if there is none."""
    return _one(bundle.certificate).not_valid_after_utc


def is_due(bundle: Bundle, host: str, now: datetime.datetime) -> bool:
    """Tell whether a new one is to be made: it is no bundle, another's, or two thirds are over."""
    try:
        certificate = _one(bundle.certificate)
        key = serialization.load_pem_private_key(bundle.key.encode(), None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        authority = _read(bundle.authorities)[0]
        certificate.verify_directly_issued_by(authority)
    except Exception:  # whatever somebody put there instead
        return True
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return (
        key.public_key() != certificate.public_key()
        or host not in names.value.get_values_for_type(x509.DNSName)
        or now >= certificate.not_valid_before_utc + life * 2 / 3
    )


def newest(authorities: str) -> str:
    """Return the first of *authorities*."""
    end = "-----END CERTIFICATE-----\n"
    return authorities.partition(end)[0] + end


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _one(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text.encode())


def _read(text: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text.encode()) if text else []
    except ValueError:
        return []  # not ours: nobody is to trust it
