"""What a pod with devices may not be beside, and what an administrator allows."""

import pytest

from pyvgpu.controller.webhook import confines

STRICT = confines.Confines()


def pod(**spec):
    return {"spec": {"containers": [{"name": "a"}], **spec}}


def privileged(part="containers", value=True):
    return pod(**{part: [{"name": "p", "securityContext": {"privileged": value}}]})


def mounting(path, part="containers"):
    mounts = [{"name": "v", "mountPath": "/v"}]
    volumes = [{"name": "v", "hostPath": {"path": path}}, {"name": "w", "emptyDir": {}}]
    return pod(**{part: [{"name": "m", "volumeMounts": mounts}]}, volumes=volumes)


def test_a_pod_that_names_its_node_is_told_what_would_do():
    why = confines.why_no_node(pod(nodeName="n-1"), "team", STRICT)
    assert why.startswith("spec.nodeName n-1: ")
    assert "nodeSelector kubernetes.io/hostname: n-1" in why
    assert "--allow-node-name" in why


@pytest.mark.parametrize("name", [None, ""])
def test_a_pod_that_names_none_is_none_of_our_business(name):
    assert not confines.why_no_node(pod(nodeName=name), "team", STRICT)
    assert not confines.why_no_node({"spec": None}, "team", STRICT)


@pytest.mark.parametrize(("namespace", "refused"), [("ops-1", False), ("team", True)])
def test_an_administrator_allows_namespaces_to_name_nodes(namespace, refused):
    allowed = confines.Confines(named_nodes=("ops-*",))
    assert bool(confines.why_no_node(pod(nodeName="n"), namespace, allowed)) is refused


@pytest.mark.parametrize("part", confines.PARTS)
def test_a_privileged_container_is_refused_wherever_it_is(part):
    why = confines.why_not_privileged(privileged(part), "team", STRICT)
    assert why.startswith("container p: securityContext.privileged true: ")
    assert "--allow-privileged" in why
    allowed = confines.Confines(privileged=("team",))
    assert not confines.why_not_privileged(privileged(part), "team", allowed)


@pytest.mark.parametrize("value", [False, None])
def test_one_that_is_not_privileged_is_not_refused(value):
    assert not confines.why_not_privileged(privileged(value=value), "team", STRICT)


def adding(*names, part="containers"):
    context = {"capabilities": {"add": list(names)}}
    return pod(**{part: [{"name": "c", "securityContext": context}]})


@pytest.mark.parametrize("part", confines.PARTS)
@pytest.mark.parametrize(
    "name",
    [
        "SYS_ADMIN",
        "CAP_SYS_ADMIN",
        "sys_admin",
        "ALL",
        "SYS_MODULE",
        "SYS_RAWIO",
        "DAC_READ_SEARCH",
    ],
)
def test_a_capability_that_comes_to_the_same_is_refused(name, part):
    why = confines.why_not_privileged(adding("NET_ADMIN", name, part=part), "team", STRICT)
    assert why.startswith(f"container c: securityContext.capabilities.add {name}: ")
    assert why.endswith("or a namespace that --allow-privileged names")
    allowed = confines.Confines(privileged=("te*",))
    assert not confines.why_not_privileged(adding(name, part=part), "team", allowed)


def test_other_capabilities_and_those_that_are_dropped_are_not_refused():
    others = adding("SYS_PTRACE", "NET_ADMIN", "IPC_LOCK", "SYS_NICE", "MKNOD")
    assert not confines.why_not_privileged(others, "team", STRICT)
    dropped = {"name": "c", "securityContext": {"capabilities": {"drop": ["ALL"], "add": None}}}
    assert not confines.why_not_privileged(pod(containers=[dropped]), "team", STRICT)


@pytest.mark.parametrize(("namespace", "refused"), [("ops-1", False), ("team", True)])
def test_the_nodes_processes_are_seen_where_an_administrator_allows_it(namespace, refused):
    allowed = confines.Confines(host_pids=("ops-*",))
    why = confines.why_no_host_pid(pod(hostPID=True), namespace, allowed)
    assert bool(why) is refused
    if why:
        assert why.startswith("spec.hostPID true: ")
        assert why.endswith("or a namespace that --allow-host-pid names")
    for value in (False, None):
        assert not confines.why_no_host_pid(pod(hostPID=value), namespace, allowed)


def test_only_the_parts_that_are_asked_about_are_looked_at():
    parts = ("ephemeralContainers",)
    assert not confines.why_not_privileged(privileged(), "team", STRICT, parts)
    assert not confines.why_no_host_path(mounting("/data"), STRICT, parts)
    assert confines.why_no_host_path(mounting("/data", "ephemeralContainers"), STRICT, parts)


ALLOWED = confines.Confines(host_paths=("/data", "/mnt/models/"))


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/", True),
        ("/dev", True),
        ("/database", True),
        ("/mnt", True),
        ("", True),
        ("/data", False),
        ("/data/", False),
        ("//data//train/./x", False),
        ("/mnt/models", False),
        ("/mnt/models/llama", False),
    ],
)
def test_folders_of_the_node_are_refused_but_for_those_that_are_allowed(path, refused):
    why = confines.why_no_host_path(mounting(path), ALLOWED)
    assert bool(why) is refused
    if why:
        assert why.startswith(f"volume v: hostPath {path}: ")
        assert why.endswith("--allow-host-path names: /data, /mnt/models/")


def test_a_volume_that_nobody_mounts_is_refused_too():
    made = pod(volumes=[{"name": "v", "hostPath": {"path": "/run"}}])
    assert confines.why_no_host_path(made, STRICT)


def test_all_folders_can_be_allowed():
    assert not confines.why_no_host_path(mounting("/dev"), confines.Confines(host_paths=("/",)))
