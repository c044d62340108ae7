"""Settings that pods with devices may not have, and an administrator's exceptions."""

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


def test_a_pod_with_a_node_name_is_refused_with_an_alternative():
    why = confines.why_no_node(pod(nodeName="n-1"), "team", STRICT)
    assert why.startswith("spec.nodeName n-1: ")
    assert "nodeSelector kubernetes.io/hostname: n-1" in why
    assert "--allow-node-name" in why


@pytest.mark.parametrize("name", [None, ""])
def test_a_pod_without_a_node_name_is_allowed(name):
    assert not confines.why_no_node(pod(nodeName=name), "team", STRICT)
    assert not confines.why_no_node({"spec": None}, "team", STRICT)


@pytest.mark.parametrize(("namespace", "refused"), [("ops-1", False), ("team", True)])
def test_node_names_are_allowed_by_namespace(namespace, refused):
    allowed = confines.Confines(named_nodes=("ops-*",))
    assert bool(confines.why_no_node(pod(nodeName="n"), namespace, allowed)) is refused


@pytest.mark.parametrize("part", confines.PARTS)
def test_a_privileged_container_is_refused_in_any_list(part):
    why = confines.why_not_privileged(privileged(part), "team", STRICT)
    assert why.startswith("container p: securityContext.privileged true: ")
    assert "--allow-privileged" in why
    allowed = confines.Confines(privileged=("team",))
    assert not confines.why_not_privileged(privileged(part), "team", allowed)


@pytest.mark.parametrize("value", [False, None])
def test_an_unprivileged_container_is_allowed(value):
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
def test_an_equivalent_capability_is_refused(name, part):
    why = confines.why_not_privileged(adding("NET_ADMIN", name, part=part), "team", STRICT)
    assert why.startswith(f"container c: securityContext.capabilities.add {name}: ")
    assert why.endswith("or a namespace that --allow-privileged names")
    allowed = confines.Confines(privileged=("te*",))
    assert not confines.why_not_privileged(adding(name, part=part), "team", allowed)


def test_other_and_dropped_capabilities_are_allowed():
    others = adding("SYS_PTRACE", "NET_ADMIN", "IPC_LOCK", "SYS_NICE", "MKNOD")
    assert not confines.why_not_privileged(others, "team", STRICT)
    dropped = {"name": "c", "securityContext": {"capabilities": {"drop": ["ALL"], "add": None}}}
    assert not confines.why_not_privileged(pod(containers=[dropped]), "team", STRICT)


@pytest.mark.parametrize(("namespace", "refused"), [("ops-1", False), ("team", True)])
def test_host_pid_is_allowed_by_namespace(namespace, refused):
    allowed = confines.Confines(host_pids=("ops-*",))
    why = confines.why_no_host_pid(pod(hostPID=True), namespace, allowed)
    assert bool(why) is refused
    if why:
        assert why.startswith("spec.hostPID true: ")
        assert why.endswith("or a namespace that --allow-host-pid names")
    for value in (False, None):
        assert not confines.why_no_host_pid(pod(hostPID=value), namespace, allowed)


def test_only_the_given_container_lists_are_checked():
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
def test_host_paths_are_refused_except_allowed_folders(path, refused):
    why = confines.why_no_host_path(mounting(path), ALLOWED)
    assert bool(why) is refused
    if why:
        assert why.startswith(f"volume v: hostPath {path}: ")
        assert why.endswith("--allow-host-path names: /data, /mnt/models/")


def test_an_unmounted_volume_is_refused():
    made = pod(volumes=[{"name": "v", "hostPath": {"path": "/run"}}])
    assert confines.why_no_host_path(made, STRICT)


def test_all_host_paths_can_be_allowed():
    assert not confines.why_no_host_path(mounting("/dev"), confines.Confines(host_paths=("/",)))
