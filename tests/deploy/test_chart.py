"""The chart: versions, the objects rendered for values, and values that it refuses."""

import argparse
import re
from pathlib import Path

import charted
import pytest
import release
import yaml
from charted import arguments, made

from pyvgpu import oversubscription
from pyvgpu.cli import device_plugin
from pyvgpu.controller.scheduler import config_check
from pyvgpu.deviceplugin import agent_settings as agent_settings
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.deviceplugin.devices import mps_daemons

SECOND = ("scheduler.mode=second", "kubeScheduler.image=own/kube-scheduler:1")


def test_chart_has_this_version():
    assert charted.ABOUT["version"] == charted.VERSION == release.version()


def test_every_object_has_the_standard_labels():
    settings = (*SECOND, "dra.enabled=true", "profile=gaia", "webhook.environmentPolicy=true")
    for thing in made(*settings).values():
        labels = thing["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "pyvgpu"
        assert labels["app.kubernetes.io/instance"] == charted.RELEASE


ALL = made(*SECOND, "dra.enabled=true,profile=gaia,statusPage.enabled=true")
PARTS = [
    pytest.param(thing, id=name)
    for (kind, name), thing in ALL.items()
    if kind in ("Deployment", "DaemonSet")
]


def selected(kind, labels):
    """Return the specs of the objects of a kind that select pods with these labels."""
    found = {name: manifest["spec"] for (a, name), manifest in ALL.items() if a == kind}
    return [
        spec
        for spec in found.values()
        if spec.get("podSelector", spec.get("selector")) == {"matchLabels": labels}
    ]


@pytest.mark.parametrize("part", PARTS)
def test_every_workload_has_network_policy_probes_and_limits(part):
    template = part["spec"]["template"]
    labels, spec = template["metadata"]["labels"], template["spec"]
    assert part["spec"]["selector"] == {"matchLabels": labels}
    (network,) = selected("NetworkPolicy", labels)
    (container,) = spec["containers"]
    ports = {port["name"] for port in container.get("ports", ())}
    for rule in network.get("ingress", ()):
        assert {port["port"] for port in rule["ports"]} <= ports
    budgets = selected("PodDisruptionBudget", labels)
    replicated = part["spec"].get("replicas", 0) > 1
    assert [budget["maxUnavailable"] for budget in budgets] == ([1] if replicated else [])
    context = {**spec.get("securityContext", {}), **container["securityContext"]}
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context.get("runAsNonRoot") or part["kind"] == "DaemonSet"
    assert container["resources"]["limits"]["memory"]
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    probes = {"startupProbe", "livenessProbe", "readinessProbe"}
    assert not ports or probes <= set(container)


def test_no_role_has_wildcards():
    roles = [manifest for (kind, _), manifest in ALL.items() if kind in ("Role", "ClusterRole")]
    assert len(roles) > 10
    for rule in (rule for role in roles for rule in role["rules"]):
        assert "*" not in {*rule["verbs"], *rule.get("resources", ()), *rule.get("apiGroups", ())}
        secrets = "secrets" in rule.get("resources", ())
        assert not secrets or rule["resourceNames"]
        assert not set(rule.get("resources", ())) & {"pods/exec", "serviceaccounts/token"}


def test_other_namespaces_replace_the_defaults_everywhere():
    settings = ("agentNamespace.name=nodes,dra.enabled=true,profile=gaia", *SECOND)
    text = charted.text(*settings, namespace="control")
    assert "serviceaccount:pyvgpu" not in text
    assert "namespace: pyvgpu" not in text
    for thing in charted.documents(*settings, namespace="control"):
        assert thing["metadata"].get("namespace", "control") in ("control", "nodes", "kube-system")


def test_simulated_devices_need_neither_driver_nor_control_nodes():
    things = made("simulate=h100:2")
    assert ("DaemonSet", "control-nodes") not in things
    assert "--simulate=h100:2" in arguments(things, "DaemonSet", "agent")
    spec = things["DaemonSet", "agent"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"memory": "256Mi"}
    folders = {volume["hostPath"]["path"] for volume in spec["volumes"]}
    assert not folders & {"/usr", "/etc", "/dev", "/run/nvidia"}


@pytest.mark.parametrize("mode", ["none", "patch", "second"])
def test_placement_option_follows_the_scheduler_mode(mode):
    things = made(f"scheduler.mode={mode}", *SECOND[1:])
    placed = "--placement=extender" in arguments(things, "DaemonSet", "agent")
    assert placed is (mode != "none")
    assert (("Deployment", "scheduler") in things) is (mode != "none")
    assert (("Deployment", "kube-scheduler") in things) is (mode == "second")
    sent = "--scheduler=pyvgpu" in arguments(things, "Deployment", "webhook")
    assert sent is (mode == "second")


def test_second_scheduler_samples_all_nodes_and_authenticates():
    things = made(*SECOND, "scheduler.clusterIP=10.96.0.50")
    text = things["ConfigMap", "kube-scheduler"]["data"]["config.yaml"]
    config = yaml.safe_load(text)
    assert config_check.check(config) == ()
    assert config["percentageOfNodesToScore"] == 100
    (extender,) = config["extenders"]
    assert extender["urlPrefix"] == "https://10.96.0.50/scheduler"
    assert things["Service", "pyvgpu-scheduler"]["spec"]["clusterIP"] == "10.96.0.50"
    spec = things["Deployment", "kube-scheduler"]["spec"]["template"]["spec"]
    (secret,) = (volume["secret"] for volume in spec["volumes"] if volume["name"] == "extender")
    files = {f"/extender/{item['path']}" for item in secret["items"]}
    tls = extender["tlsConfig"]
    assert {tls[field] for field in ("caFile", "certFile", "keyFile")} == files
    status = things["ValidatingAdmissionPolicy", "pyvgpu-status"]["spec"]["validations"]
    assert "serviceaccount:pyvgpu:kube-scheduler" in status[0]["expression"]


def test_ipv6_address_of_the_scheduler_is_in_brackets_in_urls_alone():
    things = made(*SECOND, "scheduler.clusterIP=fd00:96::50")
    text = things["ConfigMap", "kube-scheduler"]["data"]["config.yaml"]
    (extender,) = yaml.safe_load(text)["extenders"]
    assert extender["urlPrefix"] == "https://[fd00:96::50]/scheduler"
    assert things["Service", "pyvgpu-scheduler"]["spec"]["clusterIP"] == "fd00:96::50"


def test_cgroups_are_mounted_only_for_driver_limits():
    for settings, seen, option in (
        ((), True, False),
        (("agent.driverLimits=false",), False, True),
        (("agent.audit=false",), False, False),
    ):
        spec = made(*settings)["DaemonSet", "agent"]["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert (mounted.get("cgroups") == "/sys/fs/cgroup") is seen
        assert any(volume["name"] == "cgroups" for volume in spec["volumes"]) is seen
        assert ("--no-driver-limits" in container["args"]) is option


def test_options_of_single_nodes_are_files_of_the_agent():
    settings = ("agent.nodeConfigs.a100={--packing=spread,--bind-deadline=600}",)
    things = made(*settings, "agent.nodeConfigs.default={--beside-nvidia}")
    found = things["ConfigMap", "agent-node-config"]
    assert found["data"] == {
        "a100": "--packing=spread\n--bind-deadline=600",
        "default": "--beside-nvidia",
    }
    assert found["metadata"]["namespace"] == "pyvgpu-agent"
    spec = things["DaemonSet", "agent"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "node-config")
    (volume,) = (one for one in spec["volumes"] if one["name"] == "node-config")
    assert f"--node-config={mount['mountPath']}" in container["args"]
    assert volume["configMap"] == {"name": found["metadata"]["name"]}


def test_without_options_of_single_nodes_the_agent_looks_for_none():
    things = made()
    assert ("ConfigMap", "agent-node-config") not in things
    (container,) = things["DaemonSet", "agent"]["spec"]["template"]["spec"]["containers"]
    assert not any("node-config" in word for word in container["args"])


def test_agent_has_only_the_configured_capabilities():
    kill = "agent.options={--audit-action=kill}"
    for settings, added in (
        ((), None),
        (("agent.capabilities={SYS_ADMIN}",), ["SYS_ADMIN"]),
        ((kill,), ["KILL", "SYS_PTRACE"]),
        ((kill, "agent.capabilities={SYS_ADMIN,KILL}"), ["SYS_ADMIN", "KILL", "SYS_PTRACE"]),
        (("agent.suspend=true",), ["KILL", "SYS_PTRACE"]),
        (("agent.nodeConfigs.a={--audit-action=kill}",), ["KILL", "SYS_PTRACE"]),
    ):
        spec = made(*settings)["DaemonSet", "agent"]["spec"]["template"]["spec"]
        found = spec["containers"][0]["securityContext"]["capabilities"]
        assert (found["drop"], found.get("add")) == (["ALL"], added)


def test_agent_may_patch_pods_only_to_suspend_them():
    role = ("ClusterRole", "pyvgpu-agent-suspend")
    policy = ("ValidatingAdmissionPolicy", "pyvgpu-agent-suspend")
    assert not {role, policy} & made().keys()
    things = made("agent.suspend=true", "agent.driverLimits=false")
    assert things[role]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    ]
    assert "pyvgpu.io/suspension" in str(things[policy]["spec"]["validations"])
    assert "--suspend" in arguments(things, "DaemonSet", "agent")
    spec = things["DaemonSet", "agent"]["spec"]["template"]["spec"]
    assert spec["hostPID"] is True
    assert any(volume["name"] == "cgroups" for volume in spec["volumes"])


def test_beside_nvidia_option_is_set_only_if_configured():
    said, without = (
        arguments(made(*settings), "DaemonSet", "agent")
        for settings in (("agent.besideNvidia=true",), ())
    )
    assert set(said) - set(without) == {"--beside-nvidia"}


def test_time_slices_are_off_unless_replicas_are_set():
    shared = ("agent.timeSlicing.replicas=4", "agent.timeSlicing.resource=nvidia.com/gpu.shared")
    said, without = (arguments(made(*given), "DaemonSet", "agent") for given in (shared, ()))
    assert set(said) - set(without) == {
        "--time-slicing-replicas=4",
        "--time-slicing-resource=nvidia.com/gpu.shared",
    }
    options = argparse.ArgumentParser()
    device_plugin.prepare_parser(options)
    found, _ = device_plugin.settings_of(options.parse_args(said[1:]))
    assert found.time_slicing == agent_settings.TimeSlicing(4, "nvidia.com/gpu.shared")
    more = arguments(made(*shared, "agent.timeSlicing.sameDevice=true"), "DaemonSet", "agent")
    assert set(more) - set(said) == {"--time-slicing-same-device"}


def test_oversubscription_is_off_unless_a_ratio_is_set():
    suspends = "agent.suspend=true"
    given = ("oversubscription.ratio=3", "oversubscription.idleSeconds=600", suspends)
    said, without = (arguments(made(*x), "DaemonSet", "agent") for x in (given, (suspends,)))
    assert set(said) - set(without) == {
        "--oversubscribe=3",
        "--oversubscribe-idle=600",
        "--oversubscribe-slice=120",
        "--oversubscribe-moves=6",
    }
    options = argparse.ArgumentParser()
    device_plugin.prepare_parser(options)
    found, _ = device_plugin.settings_of(options.parse_args(said[1:]))
    rules = oversubscription.MoveRules(idle_seconds=600)
    assert found.oversubscription == agent_settings.Oversubscription(3, rules)


def test_wait_for_room_is_without_end_unless_it_is_bounded():
    ratio = ("oversubscription.ratio=2", "agent.suspend=true")
    bounded = made(*ratio, "oversubscription.waitSeconds=600")
    said = arguments(bounded, "DaemonSet", "agent")
    assert set(said) - set(arguments(made(*ratio), "DaemonSet", "agent")) == {
        "--oversubscribe-wait=600"
    }


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        pytest.param(("oversubscription.ratio=1.5",), None, id="--set, which makes it a text"),
        pytest.param((), {"oversubscription": {"ratio": 1.5}}, id="number of a file"),
    ],
)
def test_ratio_may_be_fractional(settings, values):
    things = made("agent.suspend=true", *settings, values=values)
    assert "--oversubscribe=1.5" in arguments(things, "DaemonSet", "agent")


def test_host_memory_for_suspended_pods_is_set_with_suspend_only():
    size = "agent.suspendHostMemory=64GiB"
    given = ((size,), ("agent.suspend=true",), ("agent.suspend=true", size))
    found = [arguments(made(*settings), "DaemonSet", "agent") for settings in given]
    assert [[x for x in said if "host-memory" in x] for said in found] == [
        [],
        ["--suspend-host-memory=50%"],
        ["--suspend-host-memory=64GiB"],
    ]


@pytest.mark.parametrize("ratio", ["0.5", "16.5", "17", "1.x", "-2"])
def test_ratio_out_of_range_is_refused(ratio):
    with pytest.raises(charted.RefusedError, match="ratio"):
        made("agent.suspend=true", f"oversubscription.ratio={ratio}")


@pytest.mark.parametrize(
    ("value", "mounted"),
    [pytest.param("none", False, id="off"), pytest.param("all", True, id="on")],
)
def test_mps_daemons_have_the_shared_memory_that_containers_get(value, mounted):
    things = made(f"agent.mps={value}")
    assert ("--mps=all" in arguments(things, "DaemonSet", "agent")) is mounted
    (container,) = things["DaemonSet", "agent"]["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    place = f"{mps_daemons.FOLDER}/{mps_daemons.SHARED_MEMORY}"
    expected = {"name": "run", "mountPath": cdi_edits.SHARED_MEMORY, "subPath": place}
    assert mounts.get(cdi_edits.SHARED_MEMORY) == (expected if mounted else None)


def test_a_resource_is_either_converted_or_sliced():
    shared = ("agent.timeSlicing.replicas=4", "agent.timeSlicing.resource=nvidia.com/gpu")
    made(*shared, "webhook.convert={hami}")  # which leaves nvidia.com/gpu alone as it is
    with pytest.raises(charted.RefusedError, match="valid would be agent.timeSlicing.resource="):
        made(*shared, "webhook.convert={nvidia}")


@pytest.mark.parametrize(
    ("setting", "part", "option"),
    [
        ("webhook.allowHostPID={node-*}", "webhook", "--allow-host-pid=node-*"),
        ("scheduler.resync=60", "scheduler", "--resync=60"),
    ],
)
def test_value_becomes_an_option(setting, part, option):
    said = arguments(made("scheduler.mode=patch", setting), "Deployment", part)
    without = arguments(made("scheduler.mode=patch"), "Deployment", part)
    assert set(said) - set(without) == {option}


def test_network_policy_admits_the_configured_api_server():
    things = made("networkPolicy.apiServer={10.0.0.10/32,fd00::a/128}")
    (named, addressed) = things["NetworkPolicy", "agent"]["spec"]["ingress"]
    assert [peer["ipBlock"]["cidr"] for peer in addressed["from"]] == [
        "10.0.0.10/32",
        "fd00::a/128",
    ]
    assert addressed["ports"] == named["ports"]


def test_scheduler_page_has_the_same_configuration():
    page = Path(__file__).parents[2] / "docs/scheduler.md"
    (block,) = re.findall(r"```yaml\n(apiVersion: kubescheduler.*?)```", page.read_text(), re.S)
    documented = yaml.safe_load(block)
    config = yaml.safe_load(made(*SECOND)["ConfigMap", "kube-scheduler"]["data"]["config.yaml"])
    for said in (documented, config):
        for part in ("leaderElection", "profiles"):
            said.pop(part, None)
        for part in ("urlPrefix", "tlsConfig"):
            del said["extenders"][0][part]
    assert documented == config


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (SECOND[:1], "kubeScheduler.image='': .*such as mirror.example/kube-scheduler:v1"),
        ((*SECOND, "webhook.enabled=false"), "valid would be webhook.enabled=true"),
        (("oversubscription.ratio=2",), "agent.suspend must be true"),
        (
            ("oversubscription.ratio=2", "agent.suspend=true", "profile=gaia"),
            "needs profile=pyvgpu",
        ),
    ],
)
def test_contradictory_values_are_refused(settings, why):
    with pytest.raises(charted.RefusedError, match=why):
        made(*settings)


@pytest.mark.parametrize("more", [{}, {"webhook": {"imageRules": [{"prefix": "a", "to": "b/"}]}}])
def test_null_sidecar_settings_render_no_configmap(more):
    given = {"sidecar": {"settings": None}}
    assert "name: pyvgpu-sidecars" not in charted.text(values={**given, **more})


def test_changed_image_rule_restarts_the_webhook():
    def noted(rule):
        things = made(f"webhook.imageRules[0].prefix={rule}", "webhook.imageRules[0].to=a/")
        return things["Deployment", "webhook"]["spec"]["template"]["metadata"]["annotations"]

    assert noted("b/") == noted("b/") != noted("c/")


def test_changed_configuration_restarts_kube_scheduler():
    def noted(*more):
        things = made(*SECOND, *more)
        return things["Deployment", "kube-scheduler"]["spec"]["template"]["metadata"]

    assert noted() == noted("agent.audit=false") != noted("profile=gaia")


@pytest.mark.parametrize(
    ("given", "sees_pids", "added"),
    [
        ((), True, None),
        (("agent.options={--packing=spread}",), True, None),
        (("agent.options={--audit-action=kill}",), True, ["KILL", "SYS_PTRACE"]),
        (("agent.audit=false",), None, None),
        (("agent.audit=false", "agent.options={--audit-action=kill}"), None, None),
    ],
)
def test_audit_needs_capabilities_only_to_kill_processes(given, sees_pids, added):
    spec = made(*given)["DaemonSet", "agent"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec.get("hostPID") == sees_pids
    capabilities = container["securityContext"]["capabilities"]
    assert capabilities["drop"] == ["ALL"]
    assert capabilities.get("add") == added
