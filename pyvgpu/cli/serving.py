"""Who makes the certificate of a program that answers by HTTPS: the options, what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    import argparse

    from pyvgpu.controller import identity
    from pyvgpu.kube.apiserver import ApiServer

CLUSTER_AUTHORITY = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who makes the certificate."""
    add = parser.add_argument_group("its certificate (one of its own)").add_argument
    add(
        "--certificate-folder",
        metavar="DIR",
        help="where another program renews it, such as a Secret of cert-manager's that is mounted",
    )
    add(
        "--certificate-signer",
        metavar="NAME",
        help="the signer for a CertificateSigningRequest, such as kubernetes.io/kubelet-serving",
    )
    add(
        "--certificate-authority",
        metavar="FILE",
        default=str(CLUSTER_AUTHORITY),
        help="that signer's authority (%(default)s)",
    )


def makes_its_own(options: argparse.Namespace) -> bool:
    """Tell whether nobody else makes it; UsageError if two do."""
    if options.certificate_folder and options.certificate_signer:
        raise errors.UsageError(
            "--certificate-folder and --certificate-signer: must not both be given"
        )
    return not (options.certificate_folder or options.certificate_signer)


def source(
    options: argparse.Namespace, api: ApiServer, place: identity.Place, *, lasting: bool = False
) -> identity.Source:
    """Return from where the certificate comes; *lasting*: an own authority signs for ten years."""
    with errors.needing("cryptography", "kubernetes"):
        from pyvgpu.controller import identity, mounted, signed
    if makes_its_own(options):
        return identity.own(api, place, lasting=lasting)
    if options.certificate_folder:
        return mounted.source(Path(options.certificate_folder))
    authority = Path(options.certificate_authority)
    return signed.source(api, place, options.certificate_signer, lambda: _read(authority))


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        why = str(exc.strerror).lower() if isinstance(exc, OSError) else "is not text"
        raise errors.DataError(f"--certificate-authority {file}: {why}") from exc
