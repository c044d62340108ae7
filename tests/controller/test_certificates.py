"""Our own CA and the certificates that it signs."""

import dataclasses
import datetime

import pytest

from pyvgpu.controller.certs import certificates

HOST = "pyvgpu-webhook.pyvgpu.svc"
WANTED = certificates.CertificateSpec((HOST,))
LASTING = certificates.CertificateSpec((HOST, "scheduler"), lasting=True)
NOW = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def bundle():
    return certificates.make(WANTED, NOW)


@pytest.mark.parametrize(("days", "due"), [(0, False), (59, False), (61, True), (91, True)])
def test_a_certificate_is_due_after_two_thirds_of_its_life(bundle, days, due):
    assert certificates.is_due(bundle, WANTED, NOW + days * DAY) is due


def test_another_host_needs_another_certificate(bundle):
    assert certificates.is_due(
        bundle, certificates.CertificateSpec(("pyvgpu-webhook.other.svc",)), NOW
    )


def test_an_inconsistent_bundle_is_due(bundle):
    other = certificates.make(WANTED, NOW)
    for mixed in (
        certificates.Bundle(bundle.authorities, bundle.certificate, other.key),
        certificates.Bundle(other.authorities, bundle.certificate, bundle.key),
        certificates.Bundle("", bundle.certificate, bundle.key),
        certificates.Bundle(bundle.authorities, "garbage", bundle.key),
        certificates.Bundle(bundle.authorities, bundle.certificate, "\0"),
        certificates.Bundle("", "", ""),
    ):
        assert certificates.is_due(mixed, WANTED, NOW)


def test_older_authorities_are_trusted_until_they_expire(bundle):
    first = bundle.authorities
    second = certificates.make(WANTED, NOW + 60 * DAY, bundle)
    assert second.authorities.endswith(first)
    assert certificates.newest(second.authorities) not in first
    assert not certificates.is_due(second, WANTED, NOW + 60 * DAY)
    third = certificates.make(WANTED, NOW + 120 * DAY, second)
    assert first not in third.authorities
    assert certificates.newest(second.authorities) in third.authorities


def test_the_authorities_do_not_grow_for_ever(bundle):
    for _ in range(10):
        bundle = certificates.make(WANTED, NOW, bundle)
    assert bundle.authorities.count("BEGIN") == certificates.MOST_AUTHORITIES


def test_invalid_authorities_are_dropped():
    assert (
        certificates.make(WANTED, NOW, certificates.Bundle("garbage")).authorities.count("BEGIN")
        == 1
    )


def test_the_key_of_a_short_lived_authority_is_discarded(bundle):
    assert not bundle.signer


def test_a_long_lived_authority_signs_renewals():
    first = certificates.make(LASTING, NOW)
    assert not certificates.is_due(first, LASTING, NOW + 59 * DAY)
    assert certificates.is_due(first, LASTING, NOW + 61 * DAY)
    second = certificates.make(LASTING, NOW + 61 * DAY, first)
    assert second.authorities == first.authorities
    assert second.signer == first.signer
    assert second.certificate != first.certificate
    assert not certificates.is_due(second, LASTING, NOW + 61 * DAY)


@pytest.mark.parametrize("signer", ["", "garbage", "another's"])
def test_without_its_key_a_new_authority_is_made_and_the_old_one_stays_trusted(signer):
    first = certificates.make(LASTING, NOW)
    signer = certificates.make(LASTING, NOW).signer if signer == "another's" else signer
    spoilt = dataclasses.replace(first, signer=signer)
    assert certificates.is_due(spoilt, LASTING, NOW)
    second = certificates.make(LASTING, NOW, spoilt)
    assert second.authorities.endswith(first.authorities)
    assert second.authorities != first.authorities


def test_a_long_lived_authority_is_replaced_after_two_thirds_of_its_life_too():
    first = certificates.make(LASTING, NOW)
    later = NOW + certificates.LASTING * 0.67
    second = certificates.make(LASTING, later, first)
    assert second.authorities.endswith(first.authorities)
    assert second.signer != first.signer


def test_no_certificate_outlives_its_authority():
    first = certificates.make(LASTING, NOW)
    long = dataclasses.replace(LASTING, life=2 * certificates.LASTING)
    assert certificates.expiry(certificates.make(long, NOW, first)) == NOW + certificates.LASTING
