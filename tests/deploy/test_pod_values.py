"""Values that every component's pods have: labels, environment, security, updates, ports."""

import charted
import pytest
import yaml
from charted import made

from pyvgpu import names

VALUES = {  # the values of each workload's pods
    "agent": "agent",
    "control-nodes": "controlNodes",
    "webhook": "webhook",
    "scheduler": "scheduler",
    "kube-scheduler": "kubeScheduler",
    "sidecar-controller": "sidecar",
    "sidecar-node": "sidecarNode",
    "status-page": "statusPage",
    "claim-controller": "claimController",
}
GIVEN = {
    "podLabels": {"team": "gpu", "app": "stolen"},
    "podAnnotations": {"note": "1"},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "updateStrategy": {"rollingUpdate": {"maxUnavailable": 7}},
    "podSecurityContext": {"runAsGroup": 7},
    "securityContext": {"seLinuxOptions": {"type": "spc_t"}},
}


def workloads(*settings, **more):
    return {
        name: thing
        for (kind, name), thing in made(*settings, **more).items()
        if kind in ("Deployment", "DaemonSet")
    }


DEFAULT = workloads(*charted.COMPONENTS)
CHANGED = workloads(*charted.COMPONENTS, values=dict.fromkeys(VALUES.values(), GIVEN))


def test_every_workload_has_values():
    assert DEFAULT.keys() == VALUES.keys()


@pytest.mark.parametrize("name", VALUES)
def test_values_of_pods_are_added_and_nothing_else_changes(name):
    before, after = DEFAULT[name]["spec"], CHANGED[name]["spec"]
    strategy = "updateStrategy" if DEFAULT[name]["kind"] == "DaemonSet" else "strategy"
    assert after.pop(strategy) == GIVEN["updateStrategy"]
    before.pop(strategy, None)
    had, has = before["template"], after["template"]
    assert has["metadata"].pop("labels") == {**had["metadata"].pop("labels"), "team": "gpu"}
    noted = had["metadata"].pop("annotations", {})
    assert has["metadata"].pop("annotations") == {**noted, "note": "1"}
    (old,), (new,) = had["spec"]["containers"], has["spec"]["containers"]
    assert new.pop("env") == [*old.pop("env", []), *GIVEN["extraEnv"]]
    assert new.pop("securityContext") == {**old.pop("securityContext"), **GIVEN["securityContext"]}
    own = had["spec"].pop("securityContext", {})
    assert has["spec"].pop("securityContext") == {**own, "runAsGroup": 7}
    assert after == before


@pytest.mark.parametrize("name", VALUES)
def test_selectors_name_the_release_and_do_not_change_with_the_version(name):
    labels = {
        "app": name,
        "app.kubernetes.io/name": "pyvgpu",
        "app.kubernetes.io/instance": charted.RELEASE,
    }
    assert DEFAULT[name]["spec"]["selector"] == {"matchLabels": labels}


def test_services_select_the_pods_of_this_release_alone():
    for (kind, name), thing in made(*charted.COMPONENTS).items():
        if kind == "Service":
            selected = thing["spec"]["selector"]
            selected.pop("pyvgpu.io/scheduler", None)
            component = name.removeprefix("pyvgpu-")
            assert selected == CHANGED[component]["spec"]["selector"]["matchLabels"]


def test_objects_name_chart_version_and_manager():
    for thing in charted.documents(*charted.EVERYTHING, charted.MONITORED):
        labels = thing["metadata"]["labels"]
        assert labels["app.kubernetes.io/version"] == charted.VERSION
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"] == f"pyvgpu-{charted.VERSION}"


def test_name_override_is_the_name_label_of_objects_and_selectors():
    for thing in charted.documents("nameOverride=gpus", *charted.COMPONENTS):
        assert thing["metadata"]["labels"]["app.kubernetes.io/name"] == "gpus"
    for one in workloads("nameOverride=gpus", *charted.COMPONENTS).values():
        assert one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == "gpus"


def test_every_program_listens_on_ipv4_and_ipv6():
    text = charted.text(*charted.COMPONENTS)
    found = [word for line in text.splitlines() for word in line.split() if "--listen=" in word]
    found += [word for line in text.splitlines() for word in line.split() if "--serve=" in word]
    assert len(found) == 10
    assert all("=[::]:" in word for word in found)


@pytest.mark.parametrize("part", ["webhook", "scheduler"])
def test_ports_and_host_network_are_values(part):
    set_here = (f"{part}.port=10250", f"{part}.metricsPort=10251", f"{part}.hostNetwork=true")
    things = made(charted.SECOND, *set_here)
    spec = things["Deployment", part]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert {"--serve=[::]:10250", "--listen=[::]:10251"} <= set(container["args"])
    assert {(port["name"], port["containerPort"]) for port in container["ports"]} == {
        ("https", 10250),
        ("metrics", 10251),
    }
    assert things["Service", f"pyvgpu-{part}"]["spec"]["ports"][0]["targetPort"] == "https"
    assert "hostNetwork" not in DEFAULT[part]["spec"]["template"]["spec"]


OPENSHIFT = made(*charted.COMPONENTS, "openshift.enabled=true")
CONSTRAINTS = {
    name: thing
    for (kind, name), thing in OPENSHIFT.items()
    if kind == "SecurityContextConstraints"
}


def test_openshift_programs_that_mount_folders_of_the_node_have_constraints():
    users = {user for thing in CONSTRAINTS.values() for user in thing["users"]}
    need = set()
    for (kind, _), thing in OPENSHIFT.items():
        if kind not in ("Deployment", "DaemonSet"):
            continue
        spec = thing["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        context = {**spec.get("securityContext", {}), **container["securityContext"]}
        if any("hostPath" in volume for volume in spec.get("volumes", ())):
            where = thing["metadata"]["namespace"]
            need.add(f"system:serviceaccount:{where}:{spec['serviceAccountName']}")
            assert context["seLinuxOptions"] == {"type": "spc_t"}
        else:
            assert "runAsUser" not in context  # OpenShift assigns one
            assert context["runAsNonRoot"]
    assert users == need
    accounts = {
        f"system:serviceaccount:{thing['metadata']['namespace']}:{name}"
        for (kind, name), thing in OPENSHIFT.items()
        if kind == "ServiceAccount"
    }
    assert users <= accounts


@pytest.mark.parametrize(
    ("settings", "privileged", "added", "pids"),
    [
        ((), False, [], True),
        (("agent.audit=false",), False, [], False),
        (("agent.privileged=true",), True, None, True),
        (("agent.options={--audit-action=kill}",), False, ["KILL", "SYS_PTRACE"], True),
    ],
)
def test_openshift_constraints_allow_what_the_agent_has(settings, privileged, added, pids):
    things = made("openshift.enabled=true", *settings)
    allowed = things["SecurityContextConstraints", "pyvgpu-agent"]
    spec = things["DaemonSet", "agent"]["spec"]["template"]["spec"]
    assert allowed["allowPrivilegedContainer"] is privileged
    assert allowed.get("allowedCapabilities") == added
    assert allowed["allowHostPID"] is pids is spec.get("hostPID", False)
    kinds = {next(iter(volume.keys() - {"name"})) for volume in spec["volumes"]}
    assert kinds <= set(allowed["volumes"])


def test_without_openshift_there_are_no_constraints():
    assert not any(kind == "SecurityContextConstraints" for kind, _ in made(*charted.COMPONENTS))


def test_kubelet_gets_a_path_of_the_node_for_claims():
    spec = made("dra.enabled=true", "agent.kubelet=/var/lib/k0s/kubelet")["DaemonSet", "agent"]
    (container,) = spec["spec"]["template"]["spec"]["containers"]
    paths = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in spec["spec"]["template"]["spec"]["volumes"]
    }
    for mount in container["volumeMounts"]:
        if mount["name"] in ("registry", "socket"):
            assert mount["mountPath"] == paths[mount["name"]]
            assert mount["mountPath"].startswith("/var/lib/k0s/kubelet/")
    assert {
        "--plugins=/var/lib/k0s/kubelet/plugins",
        "--plugins-registry=/var/lib/k0s/kubelet/plugins_registry",
    } <= set(container["args"])


def test_only_a_configured_startup_taint_may_be_removed():
    policy = ("ValidatingAdmissionPolicy", "pyvgpu-agent")
    key = "pyvgpu.io/starting"
    things = made(f"agent.startupTaint={key}")
    (container,) = things["DaemonSet", "agent"]["spec"]["template"]["spec"]["containers"]
    assert f"--startup-taint={key}" in container["args"]
    assert f't.key == "{key}"' in yaml.safe_dump(things[policy], width=10_000).replace('\\"', '"')
    without = yaml.safe_dump(made()[policy])
    assert "taints" not in without
    assert "object.spec == oldObject.spec" in without


def test_by_default_nothing_of_sidecars_is_created():
    for kind, name in made():
        assert "sidecar" not in name, kind
    text = charted.text()
    assert "sidecars.pyvgpu.io" not in text
    assert "batch" not in text  # no permission for Jobs


def test_protected_namespaces_are_the_same_everywhere():
    things = made(charted.SIDECARS, "sidecar.protectedNamespaces={platform}")
    listed = ["kube-system", "pyvgpu", "pyvgpu-agent", "platform"]
    for kind, name in (("Deployment", "sidecar-controller"), ("DaemonSet", "sidecar-node")):
        arguments = charted.arguments(things, kind, name)
        assert [
            word.partition("=")[2] for word in arguments if word.startswith("--protected-")
        ] == listed
    hooks = things["MutatingWebhookConfiguration", "pyvgpu-webhook"]["webhooks"]
    (hook,) = (each for each in hooks if each["name"] == "sidecars.pyvgpu.io")
    assert hook["namespaceSelector"]["matchExpressions"][0]["values"] == listed
    policy = things["ValidatingAdmissionPolicy", "pyvgpu-sidecar-controller"]["spec"]
    assert str(listed).replace("'", '"').replace(" ", "") in policy["validations"][0]["expression"]


def test_renewed_client_certificates_are_for_kube_schedulers_that_read_them():
    for mode, renewed in (("patch", False), ("second", True)):
        things = made(charted.SECOND.replace("mode=second", f"mode={mode}"))
        said = charted.arguments(things, "Deployment", "scheduler")
        assert ("--client-days=90" in said) is renewed


def test_status_writers_are_in_the_policy():
    policy = made("webhook.statusWriters={system:serviceaccount:vk:vk}")[
        "ValidatingAdmissionPolicy", "pyvgpu-status"
    ]
    assert '"system:serviceaccount:vk:vk"' in policy["spec"]["validations"][0]["expression"]


@pytest.mark.parametrize(
    "settings", [(), ("agent.suspend=true",), ("agent.options={--audit-action=kill}",)]
)
def test_agents_apparmor_profile_is_a_value_beside_its_other_restrictions(settings):
    given = "agent.securityContext.appArmorProfile.type=Unconfined"
    before, after = (
        made(*more)["DaemonSet", "agent"]["spec"]["template"]["spec"]["containers"][0][
            "securityContext"
        ]
        for more in (settings, (*settings, given))
    )
    assert after == {**before, "appArmorProfile": {"type": "Unconfined"}}


def agent_affinities(*settings):
    """Return the affinity of each DaemonSet of the agents' namespace, by name."""
    return {
        name: thing["spec"]["template"]["spec"].get("affinity")
        for (kind, name), thing in charted.made(charted.SIDECARS, *settings).items()
        if kind == "DaemonSet"
    }


def selects(affinity, labels):
    """Return whether nodes with *labels* satisfy a required node affinity."""
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    met = {
        "In": lambda rule: labels.get(rule["key"]) in rule["values"],
        "Exists": lambda rule: rule["key"] in labels,
    }
    return any(
        all(met[rule["operator"]](rule) for rule in term["matchExpressions"])
        for term in required["nodeSelectorTerms"]
    )


def test_agents_run_on_all_nodes_by_default():
    assert set(agent_affinities().values()) == {None}


GPU_LABELS = [
    {names.GPU_NODE_LABEL: "true"},
    {"nvidia.com/gpu.present": "true"},
    {"feature.node.kubernetes.io/pci-10de.present": "true"},
    {"feature.node.kubernetes.io/pci-0302_10de.present": "true"},
    {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"},
    {"k8s.amazonaws.com/accelerator": "nvidia-tesla-v100"},
    {"kubernetes.azure.com/accelerator": "nvidia"},
]
OTHER_LABELS = [
    {},
    {"kubernetes.io/hostname": "n"},
    {names.GPU_NODE_LABEL: "false"},
    {"nvidia.com/gpu.present": "false"},
]


def test_agents_can_be_kept_to_nodes_with_a_label_of_a_gpu():
    found = agent_affinities("agent.gpuNodesOnly=true")
    assert found.pop("sidecar-node") is None  # it ends sidecars of Jobs without devices, too
    assert found.keys() == {"agent", "control-nodes"}
    for affinity in found.values():
        assert [labels for labels in GPU_LABELS if not selects(affinity, labels)] == []
        assert [labels for labels in OTHER_LABELS if selects(affinity, labels)] == []


def test_labels_of_gpu_nodes_are_documented():
    page = (charted.render.CHART.parents[2] / "docs" / "beside-nvidia.md").read_text()
    affinity = agent_affinities("agent.gpuNodesOnly=true")["agent"]
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in required["nodeSelectorTerms"]:
        for rule in term["matchExpressions"]:
            assert rule["key"].removeprefix("feature.node.kubernetes.io/") in page


def test_an_affinity_beside_the_label_of_a_gpu_is_refused():
    with pytest.raises(charted.RefusedError, match=r"agent\.gpuNodesOnly and agent\.affinity"):
        charted.text(values={"agent": {"gpuNodesOnly": True, "affinity": {"podAffinity": {}}}})
