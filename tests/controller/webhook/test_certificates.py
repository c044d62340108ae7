"""Our own authority and the certificate that it signs."""

import datetime

import pytest

from pyvgpu.controller.webhook import certificates

HOST = "pyvgpu-webhook.pyvgpu.svc"
NOW = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def bundle():
    return certificates.make(HOST, NOW)


@pytest.mark.parametrize(("days", "due"), [(0, False), (59, False), (61, True), (91, True)])
def test_two_thirds_of_its_life_are_served(bundle, days, due):
    assert certificates.is_due(bundle, HOST, NOW + days * DAY) is due


def test_another_name_needs_another(bundle):
    assert certificates.is_due(bundle, "pyvgpu-webhook.other.svc", NOW)


def test_what_does_not_belong_together_is_made_anew(bundle):
    other = certificates.make(HOST, NOW)
    for mixed in (
        certificates.Bundle(bundle.authorities, bundle.certificate, other.key),
        certificates.Bundle(other.authorities, bundle.certificate, bundle.key),
        certificates.Bundle("", bundle.certificate, bundle.key),
        certificates.Bundle(bundle.authorities, "garbage", bundle.key),
        certificates.Bundle(bundle.authorities, bundle.certificate, "\0"),
        certificates.Bundle("", "", ""),
    ):
        assert certificates.is_due(mixed, HOST, NOW)


def test_the_older_authorities_are_trusted_until_they_end(bundle):
    first = bundle.authorities
    second = certificates.make(HOST, NOW + 60 * DAY, first)
    assert second.authorities.endswith(first)
    assert certificates.newest(second.authorities) not in first
    assert not certificates.is_due(second, HOST, NOW + 60 * DAY)
    third = certificates.make(HOST, NOW + 120 * DAY, second.authorities)
    assert first not in third.authorities
    assert certificates.newest(second.authorities) in third.authorities


def test_the_authorities_do_not_grow_for_ever(bundle):
    for _ in range(10):
        bundle = certificates.make(HOST, NOW, bundle.authorities)
    assert bundle.authorities.count("BEGIN") == certificates.MOST_AUTHORITIES


def test_what_is_no_authority_is_not_trusted():
    assert certificates.make(HOST, NOW, "garbage").authorities.count("BEGIN") == 1
