"""The plugins stay registered across restarts and failures of kubelet and of their servers."""

import contextlib
import socket

import listeners
import pytest
from fake_kubelet import VCORE, VMEMORY
from waiting import beside, wait_until

from pyvgpu.deviceplugin.kubelet import device_ids, plugin_messages
from pyvgpu.deviceplugin.kubelet.offers import Offer
from pyvgpu.deviceplugin.plugin import plugin_server, registration


class Stub:
    """A decider that allocates nothing."""

    def allocate(self, kind, given):
        return plugin_messages.AllocateResponse()

    def start(self, kind, held):
        pass


def registrar_of(kubelet, offers):
    plugins = [plugin_server.Plugin(kubelet.folder, offer, Stub()) for offer in offers.values()]
    return registration.Registrar(kubelet.folder, plugins)


def offered(**sizes):
    return {our.kind: Offer(our, sizes.get(our.kind.value, 4)) for our in device_ids.OURS}


@contextlib.contextmanager
def registered(kubelet, **sizes):
    """Run the plugins of both resources; yield their offers."""
    offers = offered(**sizes)
    with beside(registrar_of(kubelet, offers)):
        yield offers


def state(socket):
    """Return a value that differs for each socket of that name; None: there is none."""
    try:
        return socket.lstat().st_ctime_ns
    except FileNotFoundError:
        return None


def test_both_resources_are_registered(kubelet):
    with registered(kubelet):
        kubelet.until_offered()
        assert kubelet.healthy(VCORE) == {"c0", "c1", "c2", "c3"}
        assert kubelet.healthy(VMEMORY) == {"m0", "m1", "m2", "m3"}


def test_later_kubelet_gets_the_registration(kubelet):
    kubelet.stop()
    with registered(kubelet):
        kubelet.start()
        kubelet.until_offered()


def test_restarted_kubelet_gets_the_registration_again(kubelet):
    with registered(kubelet):
        for _ in range(3):
            kubelet.until_offered()
            kubelet.stop()
            kubelet.start()
        kubelet.until_offered()


def test_no_sockets_exist_before_kubelet_listens(kubelet):
    """It removes the sockets found at its start, even if a new one has the name by then."""
    kubelet.stop()
    ours = kubelet.folder / "pyvgpu-vcore.sock"
    with socket.socket(socket.AF_UNIX) as gone:  # a name without a listener
        (kubelet.folder / registration.KUBELET_SOCKET).unlink(missing_ok=True)
        gone.bind(str(kubelet.folder / registration.KUBELET_SOCKET))
    registrar = registrar_of(kubelet, offered())
    with beside(registrar):
        wait_until(lambda: registrar.trouble.endswith("kubelet does not listen there"))
        assert not ours.exists()
        kubelet.start()
        kubelet.until_offered()
        assert ours.exists()


def test_backoff_is_reset_for_a_new_kubelet():
    retry_seconds = registration.RegistrationRetries()
    retry_seconds.meet("one")
    first = retry_seconds.seconds
    pauses = []
    for _ in range(9):
        retry_seconds.meet("one")
        pauses.append(retry_seconds.lose())
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]
    assert retry_seconds.seconds > first
    retry_seconds.meet("another")
    assert (retry_seconds.seconds, retry_seconds.lose()) == (first, pauses[0])


def test_removed_socket_is_recreated(kubelet):
    with registered(kubelet):
        kubelet.until_offered()
        (kubelet.folder / "pyvgpu-vcore.sock").unlink()
        kubelet.until(lambda: (kubelet.folder / "pyvgpu-vcore.sock").exists())
        kubelet.until_offered()


def test_ended_stream_triggers_a_new_registration(kubelet):
    with registered(kubelet):
        kubelet.until_offered()
        first = kubelet.endpoints[VCORE]
        first.stream.cancel()
        kubelet.until(lambda: kubelet.endpoints[VCORE] is not first and kubelet.healthy(VCORE))


def test_server_that_stopped_accepting_is_restarted(kubelet):
    """Like grpcio when accept fails for lack of memory: kubelet's connection stays."""
    with registered(kubelet):
        kubelet.until_offered()
        ours = kubelet.folder / "pyvgpu-vcore.sock"
        before = state(ours)
        assert listeners.shut_down(kubelet.folder) == 2
        kubelet.endpoints[VCORE].stream.cancel()  # the end of the stream triggers a poll
        wait_until(lambda: state(ours) not in (None, before))
        kubelet.until_offered()


def test_stopped_agent_offers_nothing(kubelet):
    with registered(kubelet):
        kubelet.until_offered()
    kubelet.until(lambda: not kubelet.healthy(VCORE) and not kubelet.healthy(VMEMORY))


def test_only_changes_are_sent(kubelet):
    with registered(kubelet) as offers:
        kubelet.until_offered()
        sent = [resource for resource, _ in kubelet.listings].count(VCORE)
        offer = offers[device_ids.ResourceKind.VCORE]
        offer.set(4)
        offer.set(4, frozenset({"c3"}))
        kubelet.until(lambda: kubelet.healthy(VCORE) == {"c0", "c1", "c2"})
        assert [resource for resource, _ in kubelet.listings].count(VCORE) == sent + 1


@pytest.mark.parametrize("unhealthy", [False, True])
def test_list_of_sixteen_large_devices_fits_a_message(kubelet, unhealthy):
    units = 16 * 288 * 4  # of 256 MiB
    with registered(kubelet, vmemory=units) as offers:
        kubelet.until_offered()
        if unhealthy:
            offers[device_ids.ResourceKind.VMEMORY].set(
                units, frozenset(offers[device_ids.ResourceKind.VMEMORY].everything)
            )
            kubelet.until(lambda: not kubelet.healthy(VMEMORY))
        assert len(kubelet.devices[VMEMORY]) == units
        assert max(size for _, size in kubelet.listings) <= 512 << 10
