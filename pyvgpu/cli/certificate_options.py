"""Options for the source of an HTTPS server's certificate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, input_files
from pyvgpu.cli import table

if TYPE_CHECKING:
    import argparse

    from pyvgpu.controller.certs import serving_certificate
    from pyvgpu.kube.apiserver import ApiServer

_LONGEST_SIGNER = 571  # the API server's maximum
CLUSTER_AUTHORITY = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the source of the certificate."""
    add = parser.add_argument_group("its certificate (default: self-issued)").add_argument
    add(
        "--certificate-folder",
        metavar="DIR",
        help="folder in which another program renews it, such as cert-manager's mounted Secret",
    )
    add(
        "--certificate-signer",
        metavar="NAME",
        type=table.typed(_signer, "--certificate-signer"),
        help="signer of our CertificateSigningRequest, such as kubernetes.io/kubelet-serving",
    )
    add(
        "--certificate-authority",
        metavar="FILE",
        default=str(CLUSTER_AUTHORITY),
        help="CA bundle that verifies certificates of that signer (%(default)s)",
    )


def _signer(text: str, flag: str) -> str:
    """Return the name of a signer, if it is valid by the API server's rule."""
    label = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
    name = rf"{label}(\.{label})+/[a-z0-9]([a-z0-9./-]*[a-z0-9])?"
    if len(text) > _LONGEST_SIGNER or not re.fullmatch(name, text):
        raise errors.UsageError(
            f"{flag} {text[:80]!r}: must be the name of a signer: a domain with a dot, a slash, "
            "and lower-case letters, digits and hyphens, such as kubernetes.io/kubelet-serving"
        )
    return text


def makes_its_own(options: argparse.Namespace) -> bool:
    """Return whether we issue the certificate ourselves; UsageError if both options are given."""
    if options.certificate_folder and options.certificate_signer:
        raise errors.UsageError(
            "--certificate-folder and --certificate-signer: must not both be given"
        )
    return not (options.certificate_folder or options.certificate_signer)


def source(
    options: argparse.Namespace,
    api: ApiServer,
    place: serving_certificate.ServerObjects,
    *,
    lasting: bool = False,
) -> serving_certificate.Source:
    """Return the source of the certificate; *lasting*: our own CA is valid for ten years."""
    with errors.needing("cryptography", "kubernetes"):
        from pyvgpu.controller.certs import from_csr, from_secret, serving_certificate
    if makes_its_own(options):
        return serving_certificate.own(api, place, lasting=lasting)
    if options.certificate_folder:
        return from_secret.source(Path(options.certificate_folder))
    authority = Path(options.certificate_authority)
    return from_csr.source(api, place, options.certificate_signer, lambda: _read(authority))


def _read(file: Path) -> str:
    return input_files.read_file(
        file, f"--certificate-authority {file}", "must be certificates in PEM"
    )
