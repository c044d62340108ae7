"""The webhook's certificate, shared by its replicas and trusted before it is served."""

import base64
import datetime
import ssl
import threading

import pytest

from pyvgpu import errors
from pyvgpu.controller.certs import certificates, serving_certificate
from pyvgpu.kube import apiserver

PLACE = serving_certificate.ServerObjects("pyvgpu", "pyvgpu-webhook")
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture
def api(small):
    made, _ = small
    made.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    hooks = [{"name": name, "clientConfig": {"service": {}}} for name in ("a.io", "b.io")]
    made.put(PLACE.mutating, {"metadata": {"uid": "m-1"}, "webhooks": hooks})
    made.put(PLACE.validating, {"metadata": {"uid": "v-1"}, "webhooks": hooks[:1]})
    return made


class Replica(serving_certificate.Identity):
    """A replica whose clock the test sets, and that does not wait."""

    def __init__(self, connection, days=0):
        self.days = days
        source = serving_certificate.own(connection, PLACE, now=lambda: NOW + self.days * DAY)
        super().__init__(connection, source, (PLACE.mutating, PLACE.validating))
        self._stop = threading.Event()
        self._stop.set()  # it never waits

    def turn(self):
        self.poll(self._stop)
        return self._bundle


def trusted(api):
    hooks = api.read(PLACE.mutating)["webhooks"] + api.read(PLACE.validating)["webhooks"]
    texts = {base64.b64decode(hook["clientConfig"]["caBundle"]).decode() for hook in hooks}
    assert len(texts) == 1
    return texts.pop()


def test_it_issues_a_certificate_that_the_api_server_trusts(api, small):
    replica = Replica(small[1])
    with pytest.raises(ssl.SSLError, match="no certificate yet"):
        replica.context()
    bundle = replica.turn()
    assert trusted(api) == bundle.authorities
    assert replica.ready.is_set()
    assert replica.expires() == pytest.approx((NOW + certificates.LIFE).timestamp(), abs=1)
    assert isinstance(replica.context(), ssl.SSLContext)


def test_nothing_is_written_while_nothing_changes(api, small):
    replica = Replica(small[1])
    replica.turn()
    api.asked.clear()
    replica.turn()
    assert {method for method, _ in api.asked} == {"GET"}


def test_all_replicas_share_one_certificate(api, small):
    assert Replica(small[1]).turn() == Replica(small[1]).turn()


def test_of_two_concurrent_issuers_the_first_wins(api, small, monkeypatch):
    first, second = Replica(small[1]), Replica(small[1])
    make = certificates.make

    def slow(*args):
        monkeypatch.setattr(certificates, "make", make)
        first.turn()  # between the second one's read and write
        return make(*args)

    monkeypatch.setattr(certificates, "make", slow)
    assert second.turn() == first.turn()
    assert trusted(api) == first.turn().authorities


def test_a_renewed_ca_is_trusted_beside_the_old_one_before_it_is_served(api, small):
    replica, other = Replica(small[1]), Replica(small[1])
    old = replica.turn()
    other.turn()
    replica.days = 61
    new = replica.turn()
    assert new != old
    assert trusted(api) == new.authorities
    assert old.authorities in new.authorities
    other.days = 61
    assert other.turn() == new


@pytest.mark.slow
def test_a_lagging_replica_does_not_remove_a_newer_authority(api, small):
    lagging = Replica(small[1])
    old = lagging.turn()
    new = Replica(small[1], days=61).turn()
    lagging._publish(old.authorities)
    assert trusted(api) == new.authorities


def test_a_reapplied_configuration_gets_the_ca_bundle_again(api, small):
    replica = Replica(small[1])
    replica.turn()
    configuration = api.read(PLACE.mutating)
    configuration["webhooks"][1]["clientConfig"] = {"caBundle": "garbage"}
    api.put(PLACE.mutating, configuration)
    assert trusted_after(replica, api)


def trusted_after(replica, api):
    bundle = replica.turn()
    return certificates.newest(bundle.authorities) in trusted(api)


@pytest.mark.parametrize(
    "data", [{"tls.crt": "garbage"}, {"tls.key": 7}, None, {"tls.crt": "/w=="}]
)
def test_a_damaged_secret_is_replaced(api, small, data):
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}, "data": data})
    bundle = Replica(small[1]).turn()
    assert not certificates.is_due(bundle, certificates.CertificateSpec((PLACE.host,)), NOW)


@pytest.mark.slow
def test_an_emptied_secret_is_a_renewal(api, small):
    replica = Replica(small[1])
    old = replica.turn()
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    new = replica.turn()
    assert new != old
    assert old.authorities in trusted(api)


@pytest.mark.slow
def test_without_an_api_server_it_keeps_serving_and_retries(api, small):
    replica = Replica(small[1])
    replica.turn()
    api.failing = [500, 500]
    stop = threading.Event()
    thread = threading.Thread(target=replica.run, args=(stop,))
    api.asked.clear()
    thread.start()
    api.wait_for("GET", PLACE.mutating)
    stop.set()
    thread.join(30)
    assert api.asked.count(("GET", PLACE.secret)) == 3
    assert replica.ready.is_set()


def test_a_configuration_that_does_not_exist_is_skipped(api, small):
    api.delete(PLACE.validating)
    assert Replica(small[1]).turn().certificate


def test_the_secret_is_created_if_permissions_allow(api, small):
    api.delete(PLACE.secret)
    assert Replica(small[1]).turn() == Replica(small[1]).turn()


def test_a_long_lived_authority_signs_renewals(api, small):
    days = 0
    source = serving_certificate.own(
        small[1], PLACE, hosts=("s",), lasting=True, now=lambda: NOW + days * DAY
    )
    first = source(certificates.Bundle())
    days = 61
    second = source(first)
    assert (first.authorities, first.signer) == (second.authorities, second.signer)
    assert first.certificate != second.certificate


def test_an_invalid_bundle_is_reported(api, small):
    with pytest.raises(errors.DataError, match="cannot be served"):
        serving_certificate.context_of(certificates.Bundle("", "garbage", "garbage"))


def test_without_a_secret_nothing_is_served(small):
    replica = Replica(small[1])
    small[0].refusing["POST"] = [403]
    with pytest.raises(apiserver.ServerError, match="404"):
        replica.turn()
    assert not replica.ready.is_set()
