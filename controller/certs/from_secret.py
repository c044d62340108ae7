"""Serving certificate from a mounted Secret, such as cert-manager's.

The issuer renews it. Kubelet updates the mount of a changed Secret within a minute or two, all
files at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors, input_files
from pyvgpu.controller.certs import certificates

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.controller.certs.serving_certificate import Source

CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"


def source(folder: Path) -> Source:
    """Return the source that reads *folder*; without ``ca.crt`` no CA bundle is published."""

    def read(served: certificates.Bundle) -> certificates.Bundle:  # noqa: ARG001 - as it stands
        # Kubelet swaps the ..data link: resolved once, all files are of one version of the Secret.
        inside = (folder / "..data" if (folder / "..data").exists() else folder).resolve()
        found = certificates.Bundle(
            _text(inside / AUTHORITIES) if (inside / AUTHORITIES).exists() else "",
            _text(inside / CERTIFICATE),
            _text(inside / KEY),
        )
        try:
            certificates.expiry(found)
        except ValueError as exc:
            raise errors.DataError(
                f"--certificate-folder {folder}: {CERTIFICATE} must be a PEM certificate, as "
                f"in a Secret of type kubernetes.io/tls"
            ) from exc
        return found

    return read


def _text(file: Path) -> str:
    return input_files.read_file(
        file,
        f"--certificate-folder {file}",
        f"must have {CERTIFICATE} and {KEY}, like a mounted Secret of type kubernetes.io/tls",
    )
