"""The key that seals choices: created once, rotated without a gap."""

import base64

import pytest
import scheduling_api as make

from pyvgpu import errors
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.controller.certs import serving_certificate
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.controller.scheduler.shell import seal_keys
from pyvgpu.deviceplugin.cluster import scheduler_choice
from pyvgpu.kube import apiserver

PLACE = serving_certificate.ServerObjects("agents", "placement")
ONE, TWO = b"1" * 32, b"2" * 32


def known(connection, random=lambda count: ONE):
    return seal_keys.SealKeys(connection, PLACE, random)


def put(api, **entries):
    data = {name: base64.b64encode(key).decode() for name, key in entries.items()}
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}, "data": data})


@pytest.mark.parametrize("there", [True, False])
def test_a_missing_key_is_created(small, there):
    api, connection = small
    if there:
        api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    one = known(connection)
    one.poll()
    assert one.all() == (ONE,)
    assert api.read(PLACE.secret)["data"] == {"key": base64.b64encode(ONE).decode()}
    assert one.ready.is_set()


def test_replicas_agree_on_one_key(small):
    _, connection = small
    first, second = known(connection), known(connection, lambda count: TWO)
    first.poll()
    second.poll()
    assert second.all() == (ONE,)


def test_the_second_replica_takes_the_firsts_key(small):
    api, connection = small
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})

    def slow(count):
        put(api, key=TWO)  # another replica was faster
        return ONE

    one = known(connection, slow)
    one.poll()
    assert one.all() == (TWO,)


@pytest.mark.parametrize("code", [403, 422])
def test_a_write_that_a_policy_denies_is_not_repeated(small, code):
    api, connection = small
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    api.refusing = {"PUT": [code, code, code]}
    with pytest.raises(apiserver.ServerError):
        known(connection).poll()
    assert [method for method, _ in api.asked].count("PUT") == 1


def test_the_entry_key_comes_first_and_all_are_accepted(small):
    api, connection = small
    put(api, a=TWO, key=ONE)
    one = known(connection)
    one.poll()
    assert one.all() == (ONE, TWO)


def test_an_emptied_secret_gets_the_same_key_again(small):
    api, connection = small
    put(api, key=TWO)
    one = known(connection)
    one.poll()
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    one.poll()
    assert one.all() == (TWO,)
    assert api.read(PLACE.secret)["data"]["key"] == base64.b64encode(TWO).decode()


@pytest.mark.parametrize("text", ["", "!", base64.b64encode(b"short").decode(), None])
def test_an_invalid_key_is_refused_with_the_rule(small, text):
    api, connection = small
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}, "data": {"key": text}})
    one = known(connection)
    with pytest.raises(errors.DataError, match="agents/placement: entry key .* at least 32"):
        one.poll()
    assert not one.ready.is_set()


STEPS = ({"key": ONE}, {"key": ONE, "next": TWO}, {"key": TWO, "next": ONE}, {"key": TWO})
CHOICE = annotations.DeviceChoice(
    "uid-p", "node-1", {"main": (datatypes.NodeShare("GPU-1", 50, 1 << 30),)}
)


class Exchange:
    """A scheduler that reads the Secret, and an agent that mounts it; each lags behind."""

    def __init__(self, api, connection, folder):
        self._api, self._folder = api, folder
        self.scheduler = known(connection)
        self._entries = {}

    def put(self, entries):
        put(self._api, **entries)
        self._entries = entries

    def mount(self):
        for file in self._folder.iterdir():
            file.unlink()
        for name, key in self._entries.items():
            (self._folder / name).write_bytes(key)

    def seal(self):
        return annotations.seal(CHOICE, self.scheduler.all()[0])

    def opens(self, text):
        try:
            found = scheduler_choice.read_keys(self._folder)
            return annotations.open_sealed(text, found, CHOICE.uid, CHOICE.node)
        except errors.DataError:
            return None

    def believes(self, text):
        """Return whether the scheduler accepts it as the choice of a running pod."""
        pod = make.pod("p", noted={"pyvgpu.io/devices": text}, nodeName=CHOICE.node)
        return pod_request.read(pod, self.scheduler.all()).held is not None


@pytest.mark.parametrize("first", ["scheduler", "agent"])
def test_key_rotation_refuses_no_choice_whichever_side_reads_first(small, tmp_path, first):
    exchange = Exchange(*small, tmp_path)
    exchange.put(STEPS[0])
    exchange.scheduler.poll()
    exchange.mount()
    before = exchange.seal()
    for step in STEPS[1:]:
        exchange.put(step)
        readers = [exchange.scheduler.poll, exchange.mount]
        for read in readers if first == "scheduler" else reversed(readers):
            sealed = exchange.seal()
            read()
            assert exchange.opens(sealed) == exchange.opens(exchange.seal()) == CHOICE
        # Earlier pods start, and count, as long as their key exists, and not after.
        is_there = ONE in step.values()
        assert exchange.opens(before) == (CHOICE if is_there else None)
        assert exchange.believes(before) == is_there
    assert exchange.scheduler.all() == (TWO,)
