"""The client certificate of kube-scheduler: issued and renewed by our own CA."""

import base64
import datetime

import pytest
from cryptography import x509

from pyvgpu import errors
from pyvgpu.controller.certs import certificates, serving_certificate
from pyvgpu.controller.scheduler.shell import callers

PLACE = serving_certificate.ServerObjects("pyvgpu", "pyvgpu-scheduler")
NOW = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)
YEAR = datetime.timedelta(days=365)


def texts(api):
    data = api.read(PLACE.secret)["data"]
    return {name: base64.b64decode(text).decode() for name, text in data.items()}


@pytest.fixture
def own(small):
    """A Secret with a server's certificate in it."""
    api, connection = small
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    serving_certificate.own(connection, PLACE, lasting=True, now=lambda: NOW)(
        certificates.Bundle()
    )
    return api, connection


def test_it_is_added_to_the_secret_without_touching_other_entries(own):
    api, connection = own
    before = texts(api)
    one = callers.Callers(connection, PLACE, lambda: NOW)
    one.poll()
    after = texts(api)
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"client.crt", "client.key"}
    assert one.authorities() == before["ca.crt"]
    assert one.ready.is_set()


def test_it_is_the_same_for_all_replicas_and_for_years(own):
    api, connection = own
    callers.Callers(connection, PLACE, lambda: NOW).poll()
    made = texts(api)["client.crt"]
    callers.Callers(connection, PLACE, lambda: NOW + 5 * YEAR).poll()
    assert texts(api)["client.crt"] == made


def test_with_a_lifetime_it_is_renewed_before_it_ends(own):
    api, connection = own
    day, now = datetime.timedelta(days=1), [NOW]
    one = callers.Callers(connection, PLACE, lambda: now[0], 90 * day)
    made = []
    for days in (0, 59, 61, 119, 150):
        now[0] = NOW + days * day
        one.poll()
        made.append(texts(api)["client.crt"])
        (loaded,) = x509.load_pem_x509_certificates(made[-1].encode())
        assert now[0] < loaded.not_valid_after_utc <= now[0] + 90 * day
    assert made[0] == made[1] != made[2] == made[3] != made[4]
    assert one.authorities() == texts(api)["ca.crt"]  # the CA stays: it is read only once


def test_a_lasting_certificate_is_replaced_once_it_has_a_lifetime(own):
    api, connection = own
    callers.Callers(connection, PLACE, lambda: NOW).poll()
    lasting = texts(api)["client.crt"]
    callers.Callers(connection, PLACE, lambda: NOW, datetime.timedelta(days=90)).poll()
    assert texts(api)["client.crt"] != lasting


@pytest.mark.parametrize("name", ["client.crt", "client.key"])
def test_a_damaged_entry_is_replaced(own, name):
    api, connection = own
    one = callers.Callers(connection, PLACE, lambda: NOW)
    one.poll()
    secret = api.read(PLACE.secret)
    secret["data"][name] = base64.b64encode(b"nonsense").decode()
    api.put(PLACE.secret, secret)
    one.poll()
    found = texts(api)
    bundle = serving_certificate.read_bundle(api.read(PLACE.secret))
    assert certificates.is_client(bundle, found["client.crt"], found["client.key"], NOW)


def test_without_an_authority_nothing_is_issued(small):
    api, connection = small
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    one = callers.Callers(connection, PLACE, lambda: NOW)
    with pytest.raises(errors.UnavailableError, match="own certificate must be made first"):
        one.poll()
    assert not one.ready.is_set()
    assert "data" not in api.read(PLACE.secret)


def test_the_first_replicas_certificate_wins(own):
    api, connection = own
    one, other = (callers.Callers(connection, PLACE, lambda: NOW) for _ in range(2))
    api.refusing["PUT"] = [409]
    with pytest.raises(errors.UnavailableError, match="409"):
        one.poll()
    other.poll()
    made = texts(api)["client.crt"]
    one.poll()
    assert texts(api)["client.crt"] == made
