"""One PodResources call serves all waiting callers, and refused calls are retried."""

import concurrent.futures
import threading

import fake_kubelet
import grpc
import pytest
import waiting
from fake_kubelet import VCORE, container, pod

from pyvgpu._api import device_plugin_pb2 as api
from pyvgpu._api import device_plugin_pb2_grpc as api_grpc
from pyvgpu.deviceplugin import grpc_socket
from pyvgpu.deviceplugin.kubelet import device_ids, offers, pod_resources
from pyvgpu.deviceplugin.plugin import plugin_server


@pytest.fixture
def asked(kubelet):
    return pod_resources.PodResources(kubelet.pod_resources)


def holding(kubelet, new, name, *held):
    """Make a pod hold these ids of vcore, whatever is offered."""
    kubelet.pods[new.uid] = new
    kubelet.held[new.uid, name, VCORE] = (frozenset(held), b"")
    return new


def test_ids_in_separate_entries_are_merged(kubelet, asked):
    holding(kubelet, pod("p", container("a", 3, 0)), "a", "c0", "c10", "c11")
    (found,) = asked.pods()
    assert (found.namespace, found.name) == ("default", "p")
    assert found.containers == {"a": {device_ids.ResourceKind.VCORE: {"c0", "c10", "c11"}}}


def test_only_native_sidecars_among_init_containers_are_listed(kubelet, asked):
    init, side = container("i", 1, 0, init=True), container("s", 1, 0, native=True)
    holding(kubelet, pod("p", init, side, container("a", 0, 0)), "i", "c0")
    assert set(asked.pods()[0].containers) == {"s", "a"}


def test_ids_are_compared_exactly(kubelet, asked):
    holding(kubelet, pod("p", container("a", 1, 0)), "a", "c10")
    found = asked.listing()
    assert found.mentioning(["c5", "c10"]) == list(found.pods)
    assert found.mentioning(["c1", "c100"]) == []


def test_unchanged_pod_is_not_parsed_again(kubelet, asked):
    first = holding(kubelet, pod("p", container("a", 1, 0)), "a", "c1")
    holding(kubelet, pod("q", container("a", 1, 0)), "a", "c2")
    before = {found.name: found for found in asked.pods()}
    holding(kubelet, first, "a", "c3")
    after = {found.name: found for found in asked.pods()}
    assert after["q"] is before["q"]
    assert after["p"].containers == {"a": {device_ids.ResourceKind.VCORE: {"c3"}}}


def test_forty_concurrent_callers_share_few_calls(kubelet, asked):
    gate = threading.Event()

    def listed(pods):
        gate.wait(waiting.PROMPT)
        return pods

    kubelet.change_list = listed
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        calls = [pool.submit(asked.pods) for _ in range(40)]
        waiting.wait_until(lambda: len(asked._changed._waiters) == 39)  # for the one in progress
        gate.set()
        assert {len(call.result()) for call in calls} == {0}
    assert kubelet.lists == 2


def test_answer_is_from_a_call_begun_after_the_request(kubelet, asked):
    begun, gate = threading.Event(), threading.Event()

    def listed(pods):
        begun.set()
        gate.wait(waiting.PROMPT)
        return pods

    kubelet.change_list = listed
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(asked.pods)
        assert begun.wait(waiting.PROMPT)
        holding(kubelet, pod("p", container("a", 1, 0)), "a", "c0")
        second = pool.submit(asked.pods)
        gate.set()
        assert len(first.result()) == 0
        assert len(second.result()) == 1


def test_rate_limited_call_is_retried(kubelet, asked):
    kubelet.refuse_lists = 3
    assert asked.pods() == ()
    assert kubelet.lists == 4


def test_unavailable_kubelet_is_reported_and_retried(kubelet):
    asked = pod_resources.PodResources(kubelet.pod_resources, retry_seconds=0.2)
    kubelet.stop()
    with pytest.raises(pod_resources.UnansweredError, match="kubelet said UNAVAILABLE"):
        asked.pods()
    kubelet.start()
    patient = pod_resources.PodResources(kubelet.pod_resources)
    assert patient.pods() == ()


@pytest.fixture
def channels(monkeypatch):
    """Return a list that gets an entry for each channel."""
    made, channel = [], grpc_socket.channel

    def counted(*arguments, **options):
        made.append(arguments)
        return channel(*arguments, **options)

    monkeypatch.setattr(grpc_socket, "channel", counted)
    return made


def test_one_connection_serves_all_calls_to_a_kubelet(kubelet, asked, channels):
    assert [asked.pods() for _ in range(3)] == [()] * 3
    assert len(channels) == 1
    kubelet.stop()
    kubelet.start()
    holding(kubelet, pod("p", container("a", 1, 0)), "a", "c1")
    assert [len(asked.pods()) for _ in range(3)] == [1] * 3
    assert len(channels) == 2


def test_failed_call_is_repeated_over_a_new_connection(kubelet, asked, channels):
    kubelet.refuse_lists = 1
    assert asked.pods() == ()
    assert len(channels) == 2


def test_kubelet_timeout_is_reported(kubelet):
    asked = pod_resources.PodResources(kubelet.pod_resources, seconds=0.2)
    gate = threading.Event()
    kubelet.change_list = lambda listed: listed if gate.wait(waiting.PROMPT) else []
    with pytest.raises(pod_resources.UnansweredError, match="DEADLINE_EXCEEDED"):
        asked.pods()
    gate.set()


def test_malformed_answer_is_reported(kubelet):
    socket = kubelet.folder / "garbage.sock"
    said = b""
    handlers = {"List": grpc.unary_unary_rpc_method_handler(lambda *_: said)}
    lister = grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)
    made = fake_kubelet.serve(socket, lambda server: server.add_generic_rpc_handlers((lister,)))
    kubelet._servers.append(made)
    asked = pod_resources.PodResources(socket)
    said = b"\x0a\xff\xff"  # not even a list
    with pytest.raises(pod_resources.UnansweredError, match="kubelet said INTERNAL"):
        asked.pods()
    said = b"\x0a\x02\x0a\xff"  # a list with an invalid pod
    with pytest.raises(pod_resources.UnansweredError, match="answer is malformed"):
        asked.pods()


def test_malformed_plugin_calls_get_an_error(kubelet):
    class Stub:
        allocate = start = None

    plugin = plugin_server.Plugin(kubelet.folder, offers.Offer(device_ids.OURS[0], 1), Stub())
    plugin.serve()
    try:
        with grpc.insecure_channel(f"unix:{plugin.socket}") as channel:
            for method in ("Allocate", "PreStartContainer", "GetPreferredAllocation"):
                call = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
                with pytest.raises(grpc.RpcError) as refused:
                    call(b"\x0a\xff\xff", timeout=waiting.PROMPT)
                assert refused.value.code() is grpc.StatusCode.INTERNAL
            stub = api_grpc.DevicePluginStub(channel)
            options = stub.GetDevicePluginOptions(api.Empty(), timeout=waiting.PROMPT)
            assert options.pre_start_required
            assert options.get_preferred_allocation_available
    finally:
        plugin.stop()
