"""The cluster's status page against a fake API server and agents that answer."""

import json

import pytest
import scheduling_api
import small_api
import status_cluster
import status_node
from status_cluster import STRANGER, VIEWER, StatusApi

from pyvgpu import errors
from pyvgpu.controller.status import cluster_state
from pyvgpu.http import endpoints
from pyvgpu.status import site


@pytest.fixture
def shown(monkeypatch):
    monkeypatch.setattr(small_api, "FEW", 500)  # larger list pages keep each test short
    api = StatusApi()
    status_cluster.fill(api)
    with status_cluster.running(api) as made:
        yield made


@pytest.fixture
def empty():
    api = StatusApi()
    with status_cluster.running(api, settled=False) as made:
        yield api, made


def ask(shown, query=None, token=VIEWER, path=site.NUMBERS, **fields):
    fields = {"authorization": f"Bearer {token}"} | fields if token else fields
    return shown.routes()[path](endpoints.HttpRequest(query or {}, fields))


def test_an_authorized_user_sees_everything(shown):
    answer = ask(shown)
    assert answer.code == 200
    found = json.loads(answer.content)
    assert (found["kind"], found["cluster"]) == ("cluster", "frankfurt")
    sums = found["totals"]
    assert (sums["nodes"], sums["devices"], sums["pods"]) == (12, 96, 96)
    assert (sums["trouble"], sums["unhealthy"], sums["cordoned"]) == (3, 1, 1)
    listed = found["nodes"]["rows"]
    assert sums["allocated"] == pytest.approx(sum(row["allocated"] for row in listed), abs=0.01)
    assert listed[0]["name"] == "gpu-node-1"
    assert listed[-1]["name"] == "gpu-node-12"


@pytest.mark.parametrize(("token", "code"), [("", 401), ("guess", 401), (STRANGER, 403)])
def test_an_unauthorized_request_gets_no_data(shown, token, code):
    answer = ask(shown, token=token)
    assert answer.code == code
    assert list(json.loads(answer.content)) == ["error"]
    assert ("WWW-Authenticate" in answer.fields) == (code == 401)
    assert ask(shown, {"node": "gpu-node-1"}, token=token).code == code


def test_static_files_need_no_token_and_contain_no_data(shown):
    for path in site.FILES:
        answer = ask(shown, token="", path=path)
        assert answer.code == 200
        assert b"gpu-node" not in answer.content


def test_pending_pods_have_a_reason_and_are_sorted_by_age(shown):
    found = shown.document({})["waiting"]
    assert found["count"] == 3
    assert [row["pod"] for row in found["rows"]] == [
        "ada/sweep-12",
        "ada/sweep-13",
        "ada/finetune-2",
    ]
    first = found["rows"][0]
    assert first["asks"] == "70 vcore and 40GiB"
    assert first["since"] == "2026-11-22T10:12:00Z"
    assert first["why"].startswith("no device for 70 vcore and 40GiB: 12 nodes")
    assert "it would fit if" in first["why"]


def test_problems_name_their_object(shown):
    assert shown.document({})["problems"] == [
        {"object": "gpu-node-7", "text": "gpu3: Xid 79 (it has fallen off the bus)"},
        {"object": "gpu-node-9", "text": "its agent is not ready"},
    ]


def test_events_are_shown_newest_first(shown):
    found = shown.document({})["events"]
    assert [event["reason"] for event in found] == ["VGPUWaits", "VGPUDeviceUnhealthy"]
    assert found[0]["object"] == "ada/sweep-12"


def test_a_node_shows_its_agents_document(shown):
    found = json.loads(ask(shown, {"node": "gpu-node-4"}).content)
    assert (found["kind"], found["node"]) == ("node", "gpu-node-4")
    assert found["devices"][0]["containers"][0]["used"] is not None


def test_an_unknown_node_is_not_found(shown):
    answer = ask(shown, {"node": "unknown"})
    assert answer.code == 404
    assert "must be one that has pyvgpu devices" in json.loads(answer.content)["error"]
    assert ask(shown, {"page": "x"}).code == 400


def test_a_matching_etag_gets_304(shown):
    first = ask(shown)
    assert ask(shown, **{"if-none-match": first.fields["ETag"]}).code == 304


def test_document_is_unavailable_until_all_lists_are_read():
    unread = cluster_state.Cluster(None, cluster_state.StatusSettings("c", "a", 1))
    with pytest.raises(errors.UnavailableError, match="the nodes have not been read yet"):
        unread.document({})


def test_a_silent_agent_is_listed_as_a_problem():
    api = StatusApi()
    status_cluster.fill(api, nodes=1)
    with status_cluster.running(api, agents=False) as shown:
        found = shown.document({"node": "gpu-node-1"})
    assert found["problems"][0]["object"] == "agent"
    assert "it answers with 404" in found["problems"][0]["text"]
    assert found["devices"][0]["used"] is None
    assert found["totals"]["used"] is None
    assert found["devices"][0]["containers"][0]["pod"] == "job-0-0"


def test_changes_appear_at_the_next_refresh(empty):
    api, shown = empty

    def states(found):
        return {row["name"]: (row["state"], row["why"]) for row in found["nodes"]["rows"]}

    status_cluster.put_node(api, "late")
    status_cluster.put_agent(api, "late")
    status_cluster.until(shown, lambda document: states(document) == {"late": ("healthy", "")})
    api.delete(f"/api/v1/namespaces/{status_cluster.AGENTS}/pods/agent-late")
    gone = {"late": ("trouble", "its agent is not running")}
    status_cluster.until(shown, lambda document: states(document) == gone)
    api.delete("/api/v1/nodes/late")
    status_cluster.until(shown, lambda document: states(document) == {})


def test_a_pending_pod_that_fits_says_so(empty):
    api, shown = empty
    status_cluster.put_node(api, "n")
    # A reason found before the node is known would be cached for WHY_SECONDS.
    status_cluster.until(shown, lambda document: document["totals"]["nodes"])
    api.put(scheduling_api.path("p"), scheduling_api.pod("p"))
    hint = "1 node would fit, such as n; kube-scheduler has not retried since"
    status_cluster.until(
        shown,
        lambda document: any(row["why"].startswith(hint) for row in document["waiting"]["rows"]),
    )


def test_a_pending_pod_with_an_invalid_request_says_so(empty):
    api, shown = empty
    api.put(scheduling_api.path("p"), scheduling_api.pod("p", vcore=130, units=4))
    found = status_cluster.until(shown, lambda document: document["waiting"]["rows"])
    assert "130" in found["waiting"]["rows"][0]["why"]


def test_a_pod_with_scheduling_gates_is_shown_as_queued(empty):
    api, shown = empty
    status_cluster.put_node(api, "n")
    pod = scheduling_api.pod("p", vcore=50, units=4)
    gates = [{"name": "kueue.x-k8s.io/admission"}, {"name": "team/quota"}]
    api.put(scheduling_api.path("p"), {**pod, "spec": {**pod["spec"], "schedulingGates": gates}})
    found = status_cluster.until(
        shown,
        lambda document: (
            (rows := document["waiting"]["rows"]) and rows[0]["asks"] == "50 vcore and 1GiB"
        ),  # "4 units" until the node is known
    )
    assert found["waiting"]["rows"][0]["why"] == (
        "queued by its schedulingGates: kueue.x-k8s.io/admission, team/quota"
    )
    api.put(scheduling_api.path("p"), pod)
    status_cluster.until(
        shown, lambda document: "1 node would fit" in document["waiting"]["rows"][0]["why"]
    )


def test_the_day_counts_pods_that_wait(empty):
    api, shown = empty
    status_cluster.put_node(api, "n")
    api.put(scheduling_api.path("p"), scheduling_api.pod("p", vcore=130, units=4))
    status_cluster.until(shown, lambda document: document["waiting"]["count"])
    shown.poll()
    day = shown.document({})["day"]
    assert day["waiting"][-1] == 1
    assert len(day["waiting"]) == len(day["allocated"]) == len(day["memory"])


def test_a_nodes_document_equals_its_agents_own(shown):
    own = status_node.Node().document()
    assert shown.document({"node": "gpu-node-2"}) == {**own, "node": "gpu-node-2"}
