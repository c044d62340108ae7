"""Limits of the components' permissions: RBAC rules and admission policies."""

import itertools
import json
import subprocess

import agent_set
import charted
import pytest
import rig
import sidecars
import yaml

from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
ACCOUNTS = ("sidecar-controller", "sidecar-node", "webhook")
OF_ALL_USERS = ("authentication.k8s.io", "authorization.k8s.io")  # self reviews
LEASES = "/apis/coordination.k8s.io/v1/namespaces/pyvgpu/leases"


def resources():
    """Yield the group and the name of every resource of this API server."""
    command = ["kubectl", "api-resources", "--no-headers", "--output=name"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    for name, _, group in (resource.partition(".") for resource in listed):
        if group not in OF_ALL_USERS:
            yield group, name
    yield from (
        ("", "pods/exec"),
        ("", "pods/eviction"),
        ("", "pods/status"),
        ("", "pods/binding"),
    )
    yield from (("", "serviceaccounts/token"), ("", "nodes/proxy"), ("batch", "jobs/status"))


def may(api, account, namespace, verb, group, resource):
    name, _, part = resource.partition("/")
    where = {"namespace": namespace, "verb": verb, "group": group, "resource": name}
    spec = {
        "user": f"system:serviceaccount:pyvgpu:{account}",
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": {**where, "subresource": part},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return api.call("POST", path, body={"spec": spec})["status"]["allowed"]


def granted(rendered, account, namespace):
    """Return the verbs that the manifests grant an account on resources without resourceNames."""
    documents = [thing for thing in yaml.safe_load_all(rendered) if thing]
    found = set()
    for binding in documents:
        if not binding["kind"].endswith("RoleBinding") or not any(
            subject["name"] == account for subject in binding["subjects"]
        ):
            continue
        if binding["metadata"].get("namespace", namespace) != namespace:
            continue
        reference = (binding["roleRef"]["kind"], binding["roleRef"]["name"])
        (role,) = (
            document
            for document in documents
            if (document["kind"], document["metadata"]["name"]) == reference
        )
        for rule in role["rules"]:
            if not rule.get("resourceNames"):
                found |= set(
                    itertools.product(rule["verbs"], rule["apiGroups"], rule["resources"])
                )
    return found


@pytest.mark.parametrize("account", ACCOUNTS)
@pytest.mark.parametrize("namespace", ["default", "pyvgpu"])
def test_component_has_exactly_the_permissions_of_its_manifest(
    shipped, rendered, account, namespace
):
    found = {
        (verb, group, resource)
        for (group, resource), verb in itertools.product(resources(), VERBS)
        if may(shipped.server, account, namespace, verb, group, resource)
    }
    assert found == granted(rendered, account, namespace)


@pytest.fixture(scope="module")
def as_node(shipped, tmp_path_factory):
    """Return a connection as sidecar-node's own pod, with cluster-admin rights.

    Its account has them during other tests, too, so tests that use this run alone.
    """
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    shipped.server.call("POST", path, body=rig.anything("test-too-much", "pyvgpu", *ACCOUNTS))
    (pod,) = shipped.server.items(shipped.path("pods"), {"labelSelector": "app=sidecar-node"})[0]
    config = tmp_path_factory.mktemp("node") / "config"
    rig.write_kubeconfig(config, "pyvgpu", "sidecar-node", pod)
    yield apiserver.connect(str(config))
    shipped.server.call("DELETE", f"{path}/test-too-much")


def refused(call, *arguments, **more):
    with pytest.raises(apiserver.ServerError) as caught:
        call(*arguments, **more)
    return str(caught.value)


@pytest.mark.alone
def test_node_agent_may_write_only_its_nodes_lease(as_node):
    own = as_node.call("GET", f"{LEASES}/pyvgpu-sidecar-{sidecars.NODE}")
    dry = {"dryRun": "All"}
    as_node.call("PUT", f"{LEASES}/{own['metadata']['name']}", dry, own)
    controllers = as_node.call("GET", f"{LEASES}/{sidecars.LEASE}")
    why = f"may write only lease pyvgpu-sidecar-{sidecars.NODE}"
    assert why in refused(as_node.call, "PUT", f"{LEASES}/{sidecars.LEASE}", dry, controllers)
    another = {"metadata": {"name": "pyvgpu-sidecar-node-2"}, "spec": own["spec"]}
    assert why in refused(as_node.call, "POST", LEASES, dry, another)
    assert why in refused(as_node.call, "DELETE", f"{LEASES}/{own['metadata']['name']}", dry)
    elsewhere = LEASES.replace("namespaces/pyvgpu", "namespaces/default")
    same = {"metadata": {"name": own["metadata"]["name"]}, "spec": own["spec"]}
    assert why in refused(as_node.call, "POST", elsewhere, dry, same)


@pytest.mark.alone
def test_node_agent_may_change_no_pod_even_as_cluster_admin(space, as_node):
    space.create("pods", rig.pod("here", rig.container("main", "sleep 1000")))
    space.create("pods", rig.pod("there", rig.container("main", ""), nodeName="node-2"))
    space.until("pods", "here", lambda pod: rig.runs(pod, "main"))
    for name in ("here", "there"):
        path = space.path("pods", name)
        body = {"metadata": {"annotations": {"pyvgpu.io/x": "y"}}}
        why = refused(as_node.call, "PATCH", path, body=body, kind=apiserver.MERGE_PATCH)
        assert "may write only lease" in why
        assert "may write only lease" in refused(as_node.call, "DELETE", path)
    new = rig.pod("new", rig.container("main", ""))
    assert "may write only lease" in refused(as_node.call, "POST", space.path("pods"), body=new)


@pytest.mark.alone
def test_token_without_a_node_may_write_nothing(as_node, shipped, tmp_path):
    config = tmp_path / "config"
    rig.write_kubeconfig(config, "pyvgpu", "sidecar-node")
    homeless = apiserver.connect(str(config))
    lease = f"{LEASES}/pyvgpu-sidecar-{sidecars.NODE}"
    own = homeless.call("GET", lease)
    why = refused(homeless.call, "PUT", lease, {"dryRun": "All"}, own)
    assert "must be bound to a pod on a node" in why


@pytest.fixture(scope="module")
def as_controller(as_node, shipped, tmp_path_factory):
    config = tmp_path_factory.mktemp("controller") / "config"
    rig.write_kubeconfig(config, "pyvgpu", "sidecar-controller")
    return apiserver.connect(str(config))


def change(api, path, body):
    return api.call("PATCH", path, {"dryRun": "All"}, body, apiserver.MERGE_PATCH)


POD_OK = [
    {"metadata": {"annotations": {"pyvgpu.io/sidecar-stop": "{}"}}},
    {"metadata": {"labels": {"pyvgpu.io/sidecars": "managed"}}},
    {"metadata": {"annotations": {"pyvgpu.io/old": None}}},
]
POD_WRONG = [
    ({"metadata": {"annotations": {"other.io/x": "y"}}}, "annotations of pyvgpu.io"),
    ({"metadata": {"annotations": {"other.io/old": "changed"}}}, "annotations of pyvgpu.io"),
    ({"metadata": {"annotations": {"other.io/old": None}}}, "annotations of pyvgpu.io"),
    ({"metadata": {"labels": {"app": "other"}}}, "annotations of pyvgpu.io"),
    ({"metadata": {"labels": {"app": None}}}, "annotations of pyvgpu.io"),
    ({"metadata": {"finalizers": ["a.io/b"]}}, "annotations of pyvgpu.io"),
    ({"spec": {"activeDeadlineSeconds": 1}}, "may change images"),
]


@pytest.mark.alone
def test_controller_may_change_only_images_and_pyvgpu_annotations_of_pods(space, as_controller):
    pod = rig.pod("p", rig.container("main", "sleep 1000"))
    pod["metadata"] |= {
        "labels": {"app": "a"},
        "annotations": {"other.io/old": "a", "pyvgpu.io/old": "b"},
    }
    space.create("pods", pod)
    path = space.path("pods", "p")
    for body in POD_OK:
        change(as_controller, path, body)
    more = [{"op": "add", "path": "/spec/tolerations/-", "value": {"key": "a"}}]
    assert "may change images" in refused(
        as_controller.call, "PATCH", path, {"dryRun": "All"}, more, apiserver.JSON_PATCH
    )
    for body, why in POD_WRONG:
        assert why in refused(change, as_controller, path, body), body
    status = {"status": {"phase": "Succeeded"}}
    assert "not their subresources" in refused(change, as_controller, f"{path}/status", status)
    assert "not their subresources" in refused(
        as_controller.call, "DELETE", path, {"dryRun": "All"}
    )


def set_image(api, path, image):
    body = [{"op": "replace", "path": "/spec/containers/0/image", "value": image}]
    return api.call("PATCH", path, {"dryRun": "All"}, body, apiserver.JSON_PATCH)


SWAP, SWAPPED = "pyvgpu.io/swap", "pyvgpu.io/swapped"


@pytest.mark.alone
def test_controller_may_set_only_images_that_it_is_to_set(space, as_controller):
    fast_exit = f"localhost/pyvgpu-fast-exit:{charted.VERSION}"
    asked = json.dumps({"main": {"image": "localhost/asked:1"}})
    pod = rig.pod("p", rig.container("main", "sleep 1000"))
    pod["metadata"]["labels"] = {"pyvgpu.io/sidecars": "managed"}
    space.create("pods", pod)
    path = space.path("pods", "p")
    set_image(as_controller, path, fast_exit)
    may_set = "may set only the fast-exit image"
    assert may_set in refused(set_image, as_controller, path, "localhost/any:1")
    assert may_set in refused(set_image, as_controller, path, "localhost/asked:1")
    change_now = {"metadata": {"annotations": {SWAP: asked}}}
    assert "may not write" in refused(change, as_controller, path, change_now)
    space.server.call("PATCH", path, body=change_now, kind=apiserver.MERGE_PATCH)  # the user
    set_image(as_controller, path, "localhost/asked:1")
    assert may_set in refused(set_image, as_controller, path, "asked:1")
    for image, wrong in ((rig.BUSYBOX, False), ("localhost/any:1", True)):
        noted = {"metadata": {"annotations": {SWAPPED: json.dumps({"main": {"image": image}})}}}
        if wrong:
            assert "may note in" in refused(change, as_controller, path, noted)
        else:
            change(as_controller, path, noted)


@pytest.mark.alone
def test_controller_may_change_only_labelled_pods_outside_protected_namespaces(
    space, shipped, as_controller
):
    fast_exit = f"localhost/pyvgpu-fast-exit:{charted.VERSION}"
    space.create("pods", rig.pod("p", rig.container("main", "sleep 1000")))
    path = space.path("pods", "p")
    assert "only in pods with the label" in refused(set_image, as_controller, path, fast_exit)
    label = {"metadata": {"labels": {"pyvgpu.io/sidecars": "managed"}}}
    change(as_controller, path, label)
    (own, *_) = shipped.server.items(shipped.path("pods"), {"labelSelector": "app=webhook"})[0]
    protected = shipped.path("pods", own["metadata"]["name"])
    why = refused(change, as_controller, protected, label)
    assert "may change nothing in namespace pyvgpu" in why


@pytest.fixture(scope="module")
def as_agent(shipped, tmp_path_factory):
    """Return a connection as a node's agent, with the chart's permissions for it."""
    rights = charted.listed([*charted.namespaces(), *charted.part(["agent/rights.yaml"])])
    agent_set.kubectl("apply", "-f", "-", text=rights)
    home = rig.as_admin(charted.AGENTS)
    holder = rig.pod("holder", rig.container("main", "sleep 1000"), serviceAccountName="agent")
    home.create("pods", holder)
    running = home.until("pods", "holder", lambda pod: rig.runs(pod, "main"))
    config = tmp_path_factory.mktemp("agent") / "config"
    rig.write_kubeconfig(config, charted.AGENTS, "agent", running)
    yield apiserver.connect(str(config))
    agent_set.kubectl(
        "delete",
        "-f",
        "-",
        "--ignore-not-found",
        text=charted.listed(
            [thing for thing in json.loads(rights)["items"] if thing["kind"] != "Namespace"]
        ),
    )
    home.server.call("DELETE", home.path("pods", "holder"), body={"gracePeriodSeconds": 0})


@pytest.mark.alone
def test_agent_may_delete_only_pods_with_devices_of_its_own_node(space, as_agent):
    limits = {"limits": {"pyvgpu.io/vcore": "30", "pyvgpu.io/vmemory": "4"}}
    asks = rig.container("main", "sleep 1000", resources=limits)
    plain = rig.container("main", "sleep 1000")
    for name, container, node in (
        ("here", asks, sidecars.NODE),
        ("there", asks, "node-9"),
        ("plain", plain, sidecars.NODE),
    ):
        space.create("pods", rig.pod(name, container, schedulerName="nobody"))
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        bound = {"metadata": {"name": name}, "target": target}
        space.server.call("POST", f"{space.path('pods', name)}/binding", body=bound)
    dry = {"dryRun": "All"}
    as_agent.call("DELETE", space.path("pods", "here"), dry)
    why = f"may delete pods of node {sidecars.NODE} alone"
    assert why in refused(as_agent.call, "DELETE", space.path("pods", "there"), dry)
    assert "only pods with devices" in refused(
        as_agent.call, "DELETE", space.path("pods", "plain"), dry
    )
    assert "cannot create resource" in refused(
        as_agent.call,
        "POST",
        f"{space.path('pods', 'here')}/eviction",
        dry,
        {"metadata": {"name": "here"}},
    )


@pytest.mark.alone
def test_controller_may_only_raise_backoff_limits_of_jobs(space, as_controller):
    job = rig.job("j", rig.pod("p", rig.container("main", "")), suspend=True, backoffLimit=3)
    space.create("jobs", job)
    path = space.path("jobs", "j")
    change(as_controller, path, {"spec": {"backoffLimit": 4}})
    for body in (
        {"backoffLimit": 2},
        {"suspend": False},
        {"parallelism": 0},
        {"activeDeadlineSeconds": 5},
        {"ttlSecondsAfterFinished": 0},
    ):
        assert "raise backoffLimit" in refused(change, as_controller, path, {"spec": body}), body


def test_manifests_pass_strict_validation(rendered):
    command = ["kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-"]
    done = subprocess.run(command, input=rendered, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
