"""A certificate from a folder that an external issuer renews."""

import pytest

from pyvgpu import errors
from pyvgpu.controller.certs import certificates, from_secret, serving_certificate

WANTED = certificates.CertificateSpec(("pyvgpu-webhook.pyvgpu.svc",))
NOTHING = certificates.Bundle()


@pytest.fixture
def folder(tmp_path):
    """Return a folder as kubelet mounts a Secret: one link swaps all its files."""
    write(tmp_path, "first", certificates.make(WANTED, serving_certificate.utc()))
    return tmp_path


def write(folder, name, bundle):
    (folder / name).mkdir()
    (folder / name / "tls.crt").write_text(bundle.certificate)
    (folder / name / "tls.key").write_text(bundle.key)
    (folder / name / "ca.crt").write_text(bundle.authorities)
    (folder / "..new").symlink_to(name)
    (folder / "..new").rename(folder / "..data")
    return bundle


def test_it_reads_the_current_version(folder):
    read = from_secret.source(folder)
    first = read(NOTHING)
    assert serving_certificate.context_of(first)
    second = write(folder, "second", certificates.make(WANTED, serving_certificate.utc()))
    assert read(first) == second


def test_a_plain_folder_works(folder):
    assert from_secret.source(folder / "first")(NOTHING).certificate


def test_without_ca_crt_there_is_no_ca_bundle(folder):
    (folder / "first/ca.crt").unlink()
    bundle = from_secret.source(folder)(NOTHING)
    assert (bundle.authorities, bool(bundle.certificate)) == ("", True)


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("tls.crt", None, "no such file or directory; must have tls.crt and tls.key"),
        ("tls.key", b"\xff", "is not text"),
        ("tls.crt", b"garbage", "tls.crt must be a PEM certificate"),
    ],
)
def test_an_invalid_certificate_is_reported(folder, file, content, why):
    (folder / "first" / file).unlink()
    if content is not None:
        (folder / "first" / file).write_bytes(content)
    with pytest.raises(errors.DataError, match=why):
        from_secret.source(folder)(NOTHING)
