"""A certificate or key that cannot be stored: bounded requests, and readiness says why."""

import threading

import crowded
import pytest

from pyvgpu.controller.certs import from_csr, serving_certificate, upkeep
from pyvgpu.controller.scheduler.shell import callers, seal_keys

PLACE = serving_certificate.ServerObjects("pyvgpu", "pyvgpu-webhook")
DENIED = "ValidatingAdmissionPolicy 'labels' denied request: Secrets need the label team"
ATTEMPTS = 40


class Stop(threading.Event):
    """Records each pause instead of waiting, and stops after so many."""

    def __init__(self, attempts=ATTEMPTS):
        super().__init__()
        self.attempts = attempts
        self.pauses = []

    def wait(self, timeout=None):
        self.pauses.append(timeout)
        if len(self.pauses) >= self.attempts:
            self.set()
        return self.is_set()


@pytest.fixture
def api(small):
    made, _ = small
    made.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    return made


def keeping(name, connection):
    if name == "key":
        return seal_keys.SealKeys(connection, PLACE)
    if name == "certificate":
        return serving_certificate.Identity(connection, serving_certificate.own(connection, PLACE))
    if name == "certificate by a signer":
        source = from_csr.source(connection, PLACE, "example.com/signer", lambda: "")
        return serving_certificate.Identity(connection, source)
    serving_certificate.Identity(
        connection, serving_certificate.own(connection, PLACE, lasting=True)
    ).poll(Stop())
    return callers.Callers(connection, PLACE)


KINDS = ["key", "certificate", "certificate of callers", "certificate by a signer"]


def puts(api):
    return sum(method == "PUT" for method, _ in api.asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("code", [422, 409, 403])
def test_a_secret_that_may_not_be_written_is_retried_with_backoff(small, api, name, code, caplog):
    one = keeping(name, small[1])
    api.asked.clear()
    api.refusals["PUT"] = (code, DENIED)
    stop = Stop()
    one.run(stop)
    assert puts(api) == ATTEMPTS
    assert max(stop.pauses) <= upkeep.LONGEST_SECONDS
    later = stop.pauses[ATTEMPTS // 2 :]
    assert min(later) >= upkeep.LONGEST_SECONDS / 10  # with the smallest jitter
    assert len(set(later)) > 1
    assert not one.ready.is_set()
    assert DENIED in one.missing
    assert DENIED in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["key", "certificate"])
def test_once_it_may_be_written_it_is_ready_and_the_backoff_is_reset(small, api, name):
    one = keeping(name, small[1])
    api.refusals["PUT"] = (422, DENIED)
    one.run(Stop())
    api.refusals.clear()
    stop = Stop(1)
    one.run(stop)
    assert one.ready.is_set()
    assert one.missing == ""
    assert stop.pauses == [upkeep.INTERVAL_SECONDS]


@pytest.mark.parametrize("name", ["key", "certificate"])
def test_a_secret_that_may_not_be_created_gives_the_api_servers_reason(small, api, name):
    one = keeping(name, small[1])
    api.delete(PLACE.secret)
    api.refusals["POST"] = (422, DENIED)
    one.run(Stop(1))
    assert DENIED in one.missing


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["token", "certificate"])
def test_without_file_descriptors_it_retries_and_gives_the_reason(small, api, kind):
    with crowded.starved(kind, small[1]._client.configuration.host) as (starved, _):
        said, well = starved.report()
    assert well
    reason = said[0].lower()
    assert "too many open files" in reason or "no usable temporary directory" in reason
    assert said[0].startswith("certificate: ")


def test_an_unreadable_file_is_named_by_the_readiness_probe(small):
    def unread(_):
        raise FileNotFoundError(2, "No such file or directory", "/tls/tls.crt")

    one = serving_certificate.Identity(small[1], unread)
    one.run(Stop(2))
    assert "/tls/tls.crt" in one.missing
