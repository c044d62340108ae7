"""Self-signed certificates: a CA, and the server and client certificates that it signs.

Where we can write the clients' CA bundle, each certificate comes with a new CA, whose key is
discarded once it has signed. Clients that read the bundle only once need a long-lived CA: its key
is kept. A replaced CA stays in the bundle beside the new one until it expires, so that nothing
fails in between. The caller passes the current time.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

LIFE = datetime.timedelta(days=90)
LASTING = datetime.timedelta(days=3650)  # of a CA whose key is kept
EARLIER = datetime.timedelta(hours=1)  # start of validity before now: clocks differ
MOST_AUTHORITIES = 4  # in a CA bundle


@dataclasses.dataclass(frozen=True, slots=True)
class Bundle:
    """PEM texts; an invalid bundle is due for renewal."""

    authorities: str = ""  # the CA bundle for clients, the newest first
    certificate: str = ""
    key: str = ""
    signer: str = ""  # the newest CA's key, if it is kept


@dataclasses.dataclass(frozen=True, slots=True)
class CertificateSpec:
    """The certificate to make."""

    hosts: tuple[str, ...]  # DNS names of the server; the first is its common name
    life: datetime.timedelta = LIFE
    lasting: bool = False  # one CA signs all, for ten years


def make(wanted: CertificateSpec, now: datetime.datetime, older: Bundle | None = None) -> Bundle:
    """Make a bundle; the CAs of *older* that are still valid stay in it."""
    older = older or Bundle()
    begin = now - EARLIER
    kept = [
        authority for authority in _read(older.authorities) if authority.not_valid_after_utc > now
    ]
    signer = _signer(older, now) if wanted.lasting else None
    if signer is None:
        signer = ec.generate_private_key(ec.SECP256R1())
        life = LASTING if wanted.lasting else wanted.life
        kept = [_authority(signer, begin, now + life), *kept]
    key = ec.generate_private_key(ec.SECP256R1())
    # A certificate that outlives its CA cannot be verified.
    end = min(now + wanted.life, kept[0].not_valid_after_utc)
    builder = _builder(_name(wanted.hosts[0]), kept[0].subject, key.public_key(), begin, end)
    builder = builder.add_extension(_names(wanted.hosts), critical=False)
    certificate = _sign(builder, signer, ExtendedKeyUsageOID.SERVER_AUTH)
    return Bundle(
        "".join(map(_pem, kept[:MOST_AUTHORITIES])),
        _pem(certificate),
        _key(key),
        _key(signer) if wanted.lasting else "",
    )


def client(
    bundle: Bundle, name: str, now: datetime.datetime, life: datetime.timedelta | None = None
) -> tuple[str, str]:
    """Return a certificate for a client called *name*, and its key.

    Without a *life* it lasts as long as the CA that signs it. ValueError if the bundle lacks that
    CA's key.
    """
    signer, known = _signer(bundle, now), _read(bundle.authorities)
    if signer is None:
        raise ValueError("no certificate authority has a key that may still sign")
    key = ec.generate_private_key(ec.SECP256R1())
    begin, end = now - EARLIER, known[0].not_valid_after_utc
    if life is not None:
        end = min(end, now + life)
    builder = _builder(_name(name), known[0].subject, key.public_key(), begin, end)
    return _pem(_sign(builder, signer, ExtendedKeyUsageOID.CLIENT_AUTH)), _key(key)


def is_client(
    bundle: Bundle,
    certificate: str,
    key: str,
    now: datetime.datetime,
    life: datetime.timedelta | None = None,
) -> bool:
    """Return whether a client's certificate and key are valid, and signed by the newest CA.

    With a *life* they are not once 2/3 of it are over, nor if they last longer than that.
    """
    loaded = _load_key(key)
    try:
        one = _one(certificate)
        one.verify_directly_issued_by(_read(bundle.authorities)[0])
    except Exception:  # the Secret may contain anything
        return False
    lasts = life is None or (not _is_old(one, now) and one.not_valid_after_utc <= now + life)
    return (
        loaded is not None
        and loaded.public_key() == one.public_key()
        and now < one.not_valid_after_utc
        and lasts
    )


def make_key() -> str:
    """Generate a key."""
    return _key(ec.generate_private_key(ec.SECP256R1()))


def is_key(text: str) -> bool:
    """Return whether *text* is a key."""
    return _load_key(text) is not None


def request(key: str, hosts: Sequence[str], name: str, organization: str = "") -> str:
    """Return a certificate signing request for *hosts*, in PEM."""
    loaded = _load_key(key)
    if loaded is None:
        raise ValueError("there is no key")
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]
    if organization:
        subject.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name(subject))
        .add_extension(_names(hosts), critical=False)
        .sign(loaded, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )


def expiry(bundle: Bundle) -> datetime.datetime:
    """Return when the server certificate expires; ValueError if there is none."""
    return _one(bundle.certificate).not_valid_after_utc


def is_due(bundle: Bundle, wanted: CertificateSpec, now: datetime.datetime) -> bool:
    """Return whether *bundle* needs replacing: invalid, other hosts, or 2/3 of its life over."""
    try:
        certificate = _one(bundle.certificate)
        key = serialization.load_pem_private_key(bundle.key.encode(), None)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        authority = _read(bundle.authorities)[0]
        certificate.verify_directly_issued_by(authority)
    except Exception:  # the Secret may contain anything
        return True
    return (
        key.public_key() != certificate.public_key()
        or not {*wanted.hosts} <= {*names.value.get_values_for_type(x509.DNSName)}
        or _is_old(certificate, now)
        or (wanted.lasting and _signer(bundle, now) is None)
    )


def newest(authorities: str) -> str:
    """Return the first of *authorities*."""
    end = "-----END CERTIFICATE-----\n"
    return authorities.partition(end)[0] + end


def _is_old(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return now >= certificate.not_valid_before_utc + life * 2 / 3


def _signer(bundle: Bundle, now: datetime.datetime) -> ec.EllipticCurvePrivateKey | None:
    """Return the key of the newest CA; None if it is not kept or the CA is due."""
    key, known = _load_key(bundle.signer), _read(bundle.authorities)
    if key is None or not known or key.public_key() != known[0].public_key():
        return None
    return None if _is_old(known[0], now) else key


def _sign(
    builder: x509.CertificateBuilder,
    signer: ec.EllipticCurvePrivateKey,
    purpose: x509.ObjectIdentifier,
) -> x509.Certificate:
    """Sign a leaf certificate."""
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(known, critical=False)
        .sign(signer, hashes.SHA256())
    )


def _authority(
    signer: ec.EllipticCurvePrivateKey, begin: datetime.datetime, end: datetime.datetime
) -> x509.Certificate:
    name = _name("pyvgpu authority")
    return (
        _builder(name, name, signer.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(signer, hashes.SHA256())
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])


def _key(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


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


def _load_key(text: str) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(text.encode(), None)
    except Exception:  # the Secret may contain anything
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _one(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(text.encode())


def _read(text: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text.encode()) if text else []
    except ValueError:
        return []  # not ours: not to be trusted
