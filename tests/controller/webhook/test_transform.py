"""Transformation of new pods with marked sidecars."""

import kubelet_argv
import pod_objects as make
import pytest
import small_kubelet as model
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu.controller.sidecar import marking, sidecar_pods, termination_methods
from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
from pyvgpu.controller.webhook import transform
from pyvgpu.controller.webhook.transform import Admission, Expansion, Provider
from pyvgpu.kube import objects

PLAIN = Admission()
NATIVE = Admission(native_namespaces=("team*",), oldest_kubelet=(1, 29))
VIRTUAL = {"nodeSelector": {"type": "virtual-kubelet"}}
TOLERANT = {"tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]}


def created(*containers, metadata=None, policy="Never", **spec):
    """Return a pod as a webhook receives it: without name, uid, status and node."""
    pod = make.pod(*containers, policy=policy, **spec)
    pod["metadata"] = {"generateName": "train-", **(metadata or {})}
    del pod["status"], pod["spec"]["nodeName"]
    return pod


def job(*sidecars, **more):
    return created(make.container("main"), *sidecars, **more)


def change(pod, admission=PLAIN):
    done = transform.transform(pod, "team-a", admission)
    return model.apply(pod, done.operations), done.warnings


def log(**spec):
    return make.sidecar("log", **{"command": ["/opt/log", "-v"], **spec})


def container_of(pod, name):
    return next(entry for entry in pod["spec"]["containers"] if entry["name"] == name)


@pytest.mark.parametrize(
    ("pod", "warnings"),
    [
        (created(make.container("main", command=["x"])), []),
        (
            job(log(), metadata={"labels": {"workflows.argoproj.io/workflow": "w"}}),
            ["controller of workflows.argoproj.io"],
        ),
    ],
)
def test_other_pods_stay_unchanged(pod, warnings):
    changed, notes = change(pod)
    assert changed == pod
    assert len(notes) == len(warnings)
    assert all(part in text for part, text in zip(warnings, notes, strict=True))


def test_another_value_of_the_label_opts_out():
    begun = job(log(), metadata={"labels": {"pyvgpu.io/sidecars": "mine"}})
    assert change(begun) == (begun, ())


@pytest.mark.parametrize(
    ("pod", "warning"),
    [
        (created(make.sidecar("log", command=["x"])), "every container is marked"),
        (job(log(), policy="Always"), "restartPolicy is Always"),
    ],
)
def test_sidecars_that_are_not_ended_may_still_be_swapped(pod, warning):
    changed, notes = change(pod)
    assert changed["metadata"].pop("labels") == transform.MANAGED
    assert changed == pod
    assert warning in notes[0]


def test_argv_moves_and_the_pod_is_labelled():
    pod, warnings = change(job(log()))
    changed = container_of(pod, "log")
    assert changed["command"] == ["$(START_COMMAND_0)", "$(START_COMMAND_1)"]
    assert sorted(pod["metadata"]["annotations"].values()) == ["-v", "/opt/log"]
    assert [entry["name"] for entry in changed["env"]] == [
        "START_COMMAND_0",
        "START_COMMAND_1",
        "SIDECAR_TERMINATION",
    ]
    assert pod["metadata"]["labels"] == {"pyvgpu.io/sidecars": "managed"}
    assert container_of(pod, "main") == make.container("main")[0]
    assert warnings == ()


ADMISSIONS = [
    PLAIN,
    NATIVE,
    Admission(virtual_expansion=Expansion.KUBELET, virtual_provider=Provider.ECI),
    Admission(virtual_expansion=Expansion.LAUNCHER, virtual_provider=Provider.BCI),
]


@pytest.mark.row(22)
@given(
    st.lists(st.sampled_from(["/opt/log", "sh", "$(A)", "$(HOME)x", "$$", "é$é", ""]), max_size=3),
    st.lists(st.sampled_from(["-v", "$(A)", "$$(A)", "", "日本"]), max_size=3),
    st.sampled_from([{}, VIRTUAL, TOLERANT, {"initContainers": [{"name": "init"}]}]),
    st.sampled_from(ADMISSIONS),
    st.booleans(),
)
def test_the_transformation_is_idempotent(command, args, spec, admission, mesh):
    one = make.sidecar("log", environment={"A": "1"}, command=command, args=args)
    sidecars = [one, make.sidecar("mesh", command=["/mesh"])] if mesh else [one]
    once, _ = change(job(*sidecars, **spec), admission)
    twice, _ = change(once, admission)
    assert twice == once


@given(
    st.lists(st.sampled_from(["/opt/log", "$(A)", "$$(A)", "x y", "日本"]), min_size=1, max_size=3)
)
def test_the_process_sees_the_same_argv(command):
    one = make.sidecar("log", environment={"A": "1"}, command=command)
    pod, _ = change(job(one))
    seen = kubelet_argv.run(container_of(pod, "log"), pod["metadata"].get("annotations"))
    assert seen == kubelet_argv.run(one[0])


def test_a_controllers_annotations_are_removed_from_a_new_pod():
    forged = {"annotations": {"pyvgpu.io/sidecar-stop": "{}", "pyvgpu.io/swapped": "{}", "a": "b"}}
    pod, _ = change(created(make.container("main"), metadata=forged))
    assert pod["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.row(27)
def test_a_pod_with_full_annotations_is_not_refused():
    full = {"annotations": {"a": "x" * (objects.MOST_ANNOTATION_BYTES - 100)}}
    pod, warnings = change(job(log(), metadata=full))
    assert container_of(pod, "log") == log()[0]
    assert "no room" in warnings[0]


def test_a_users_text_under_our_keys_is_not_executed():
    key = next(iter(change(job(log()))[0]["metadata"]["annotations"]))
    pod, _ = change(job(log(), metadata={"annotations": {key: "/bin/evil", "a": "b"}}))
    assert pod["metadata"]["annotations"][key] == "/opt/log"
    assert pod["metadata"]["annotations"]["a"] == "b"


def test_containers_with_a_common_name_prefix_have_different_keys():
    names = ["x" * 62 + end for end in "ab"]
    pod, _ = change(job(*(make.sidecar(name, command=[f"/{name}"]) for name in names)))
    assert sorted(pod["metadata"]["annotations"].values()) == [f"/{name}" for name in names]
    keys = [key.partition("/")[2] for key in pod["metadata"]["annotations"]]
    assert max(map(len, keys)) <= 63


@pytest.mark.parametrize("name", [transform.LAUNCH_VOLUME, transform.ARGV_VOLUME])
def test_a_name_conflict_prevents_the_launcher(name):
    admission = Admission(virtual_expansion=Expansion.LAUNCHER)
    begun = created(make.container(name), log(), **VIRTUAL)
    pod, warnings = change(begun, admission)
    assert container_of(pod, "log") == log()[0]
    assert "initContainers" not in pod["spec"]
    assert warnings


def test_sidecars_share_the_annotations_room():
    long = "x" * 100_000
    pod, warnings = change(
        job(*(make.sidecar(f"log-{number}", command=["log", long]) for number in range(3)))
    )
    assert not warnings
    assert objects.annotation_bytes(pod["metadata"]["annotations"]) < objects.MOST_ANNOTATION_BYTES
    assert [len(entry["env"]) - 1 for entry in pod["spec"]["containers"]] == [-1, 2, 2, 1]


@pytest.mark.parametrize(
    ("spec", "expansion", "moved", "warned"),
    [
        ({}, Expansion.NONE, True, False),
        (VIRTUAL, Expansion.NONE, False, True),
        (TOLERANT, Expansion.NONE, False, True),
        ({"tolerations": [{"operator": "Exists"}]}, Expansion.NONE, False, True),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, Expansion.NONE, True, False),
        (VIRTUAL, Expansion.KUBELET, True, False),
    ],
)
def test_a_command_that_no_node_may_expand_stays(spec, expansion, moved, warned):
    pod, warnings = change(job(log(), **spec), Admission(virtual_expansion=expansion))
    assert (container_of(pod, "log")["command"][0] == "$(START_COMMAND_0)") is moved
    assert bool(warnings) is warned


def test_the_launcher_starts_sidecars_on_nodes_without_expansion():
    admission = Admission(virtual_expansion=Expansion.LAUNCHER)
    pod, warnings = change(job(log(args=["$(A)"]), **VIRTUAL), admission)
    changed = container_of(pod, "log")
    (key, value), *_ = pod["metadata"]["annotations"].items()
    file = key.removeprefix("pyvgpu.io/start_command.")
    assert value == '["/opt/log", "-v", "$(A)"]'
    assert changed["command"] == ["/pyvgpu/launch/pyvgpu-launch", f"/pyvgpu/argv/{file}"]
    assert "args" not in changed
    assert [mount["mountPath"] for mount in changed["volumeMounts"]] == [
        "/pyvgpu/launch",
        "/pyvgpu/argv",
    ]
    assert pod["spec"]["volumes"][1]["downwardAPI"]["items"] == [
        {"path": file, "fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
    ]
    assert pod["spec"]["initContainers"][0]["image"] == SidecarSettings().fast_exit.image
    assert warnings == ()


def test_the_launcher_is_not_used_if_the_node_might_expand():
    admission = Admission(virtual_expansion=Expansion.LAUNCHER)
    pod, warnings = change(job(log(args=["$(A)"]), **TOLERANT), admission)
    assert container_of(pod, "log") == log(args=["$(A)"])[0]
    assert "does not expand" in warnings[0]


def test_the_launcher_is_not_used_if_its_names_are_taken():
    admission = Admission(virtual_expansion=Expansion.LAUNCHER)
    volumes = [{"name": transform.LAUNCH_VOLUME, "emptyDir": {}}]
    pod, warnings = change(job(log(), **VIRTUAL, volumes=volumes), admission)
    assert container_of(pod, "log") == log()[0]
    assert warnings


@pytest.mark.parametrize("provider", [Provider.ECI, Provider.BCI])
def test_the_providers_switch_is_set(provider):
    admission = Admission(virtual_provider=provider, virtual_expansion=Expansion.KUBELET)
    pod, _ = change(job(log(), make.sidecar("mesh"), **VIRTUAL), admission)
    read = sidecar_pods.read(pod)
    assert all(
        termination_methods.has_provider_switch(read, read.container(name))
        for name in ("log", "mesh")
    )
    pod, _ = change(job(log()), admission)
    assert not termination_methods.has_provider_switch(
        sidecar_pods.read(pod), sidecar_pods.read(pod).container("log")
    )


def test_native_sidecars_are_appended_to_init_containers():
    order = {"SIDECAR_TERMINATION_ORDER": "1"}
    pod, warnings = change(
        created(
            make.sidecar("first", command=["x"]),
            make.container("main"),
            make.sidecar("last", environment=order),
            initContainers=[{"name": "init"}],
        ),
        NATIVE,
    )
    natives = pod["spec"]["initContainers"]
    assert [entry["name"] for entry in natives] == ["init", "last", "first"]
    assert [entry.get("restartPolicy") for entry in natives] == [None, "Always", "Always"]
    assert natives[2]["command"] == ["x"]
    assert [entry["name"] for entry in pod["spec"]["containers"]] == ["main"]
    assert "labels" not in pod["metadata"]
    assert warnings == ()


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"startupProbe": {"exec": {}}}, "startupProbe may need a main container"),
        ({"lifecycle": {"postStart": {"exec": {}}}}, "postStart hook may need a main container"),
        ({"restartPolicy": "OnFailure"}, "a restartPolicy of its own"),
    ],
)
def test_a_sidecar_that_may_depend_on_a_main_container_stays(spec, why):
    pod, warnings = change(job(log(**spec)), NATIVE)
    assert "initContainers" not in pod["spec"]
    assert container_of(pod, "log")["command"][0] == "$(START_COMMAND_0)"
    assert why in warnings[0]


@pytest.mark.parametrize(
    ("admission", "native"),
    [
        (Admission(native_namespaces=("team-a",), oldest_kubelet=(1, 36)), True),
        (Admission(native_namespaces=("other",), oldest_kubelet=(1, 36)), False),
        (Admission(native_namespaces=("*",), oldest_kubelet=(1, 28)), False),
        (Admission(native_namespaces=("*",)), False),
    ],
)
def test_conversion_needs_the_namespace_and_all_kubelets(admission, native):
    pod, _ = change(job(log()), admission)
    assert ("initContainers" in pod["spec"]) is native


@pytest.mark.parametrize("spec", [VIRTUAL, TOLERANT])
def test_no_native_sidecars_in_a_pod_that_may_run_on_a_virtual_node(spec):
    pod, warnings = change(job(make.sidecar(), **spec), NATIVE)
    assert "initContainers" not in pod["spec"]
    assert "may be placed on a virtual node" in warnings[0]


def test_sidecars_marked_by_a_policy_are_transformed():
    policy = marking.MarkingPolicy(("mesh",), namespace="team-*")
    admission = Admission(settings=SidecarSettings(policies=(policy,)))
    pod, _ = change(job(make.container("mesh", command=["/mesh"])), admission)
    assert container_of(pod, "mesh")["command"] == ["$(START_COMMAND_0)"]


def test_without_room_in_annotations_the_providers_switch_is_not_set():
    full = {"annotations": {"a": "x" * (objects.MOST_ANNOTATION_BYTES - 10)}}
    admission = Admission(virtual_provider=Provider.BCI, virtual_expansion=Expansion.KUBELET)
    pod, warnings = change(job(log(), metadata=full, **VIRTUAL), admission)
    assert pod["metadata"]["annotations"] == full["annotations"]
    assert "no room" in warnings[0]
