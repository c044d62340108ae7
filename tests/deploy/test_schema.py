"""The schema of the chart's values: helm enforces it, and its examples suit our programs."""

import fnmatch
import json
import re

import charted
import json_schema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu import models, names
from pyvgpu.cli import device_plugin, node_options
from pyvgpu.controller.sidecar import config
from pyvgpu.deviceplugin.kubelet import device_ids

SCHEMA = charted.SCHEMA
RESOURCES = ("requests", "limits")


def rules(rule, at=""):
    yield at, rule
    for part in ("properties", "$defs"):
        for name, below in rule.get(part, {}).items():
            yield from rules(below, f"{at}.{name}")
    for part in ("items", "additionalProperties", "propertyNames"):
        if isinstance(rule.get(part), dict):
            yield from rules(rule[part], f"{at}[]")


def with_patterns():
    for at, rule in rules(SCHEMA):
        if patterns(rule):
            yield pytest.param(rule, id=at)


def whole(rule):
    """Return a rule with its reference resolved."""
    if "$ref" not in rule:
        return rule
    return {**SCHEMA["$defs"][rule["$ref"].rpartition("/")[2]], **rule}


def patterns(rule):
    return [part["pattern"] for part in rule.get("anyOf", ()) if "pattern" in part]


def check(values):
    json_schema.check(SCHEMA, values, "Draft7")


RULES = [pytest.param(rule, id=at or "all") for at, rule in rules(SCHEMA)]


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_valid_example(rule):
    known = whole(rule)
    for pattern in patterns(known):
        assert (pattern[0], pattern[-1]) == ("^", "$")
    if "type" not in known or known.get("properties", {}).keys() >= {"agent", "global"}:
        return
    if "examples" not in known:
        assert known == {"type": "object"}  # free-form
        return
    for example in known["examples"]:
        one = {**known, "$defs": SCHEMA["$defs"]}
        json_schema.check(one, example, "Draft7")


def test_defaults_are_valid_and_each_has_a_rule():
    check(charted.VALUES)

    def names(defaults, rule, at):
        for key, value in defaults.items():
            known = whole(rule["properties"][key])
            yield f"{at}{key}"
            if isinstance(value, dict) and "properties" in known:
                yield from names(value, known, f"{at}{key}.")

    said = {f"{at}"[1:].replace("[]", "") for at, rule in rules(SCHEMA)}
    found = set(names(charted.VALUES, SCHEMA, ""))
    assert {
        name for name in found if name not in said and name.split(".")[-1] not in RESOURCES
    } == set()


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("webhook.replicas=0", "/webhook/replicas"),
        ("image.tag=a b", "/image/tag"),
        ("profile=gpu", "/profile"),
        ("agent.state=var", "/agent/state"),
        ("agent.timeSlicing.replicas=1", "/agent/timeSlicing/replicas"),
        ("dra.enable=true", "/dra"),
        ("agent.options={packing}", "/agent/options/0"),
        ("agent.nodeConfigs.a={--state=/x}", "/agent/nodeConfigs/a/0"),
        ("webhook.imageRules[0].prefix=a/", "/webhook/imageRules/0"),
        ("webhook.imageRules[0].to=mirror", "/webhook/imageRules/0/to"),
        ("dra.models={h100,h100}", "/dra/models"),
        ("simulate=h10", "/simulate"),
        ("simulate=h100:0", "/simulate"),
        ("simulate=h100:17", "/simulate"),
        ("sidecar.settings.insits=true", "/sidecar/settings"),
        ("scheduler.clusterIP=10.96.0.256", "/scheduler/clusterIP"),
        ("networkPolicy.apiServer={10.0.0.10/33}", "/networkPolicy/apiServer/0"),
        ("networkPolicy.apiServer={fd00::1/129}", "/networkPolicy/apiServer/0"),
        ("agent.timeSlicing.resource=foo/bar", "/agent/timeSlicing/resource"),
        ("agent.state=/a/../b", "/agent/state"),
        ("agent.state=/a//b", "/agent/state"),
        ("agent.resources.limits.memory=lots", "/agent/resources/limits/memory"),
        ("webhook.resources.requests.cpu=-1", "/webhook/resources/requests/cpu"),
    ],
)
def test_helm_refuses_invalid_values_with_their_path(setting, place):
    with pytest.raises(charted.RefusedError) as caught:
        charted.made(setting)
    assert f"at '{place}'" in str(caught.value)


def test_whole_devices_are_refused_as_time_slices_with_the_rule():
    with pytest.raises(charted.RefusedError, match="value must be 0\n.*got 1, want 2"):
        charted.made("agent.timeSlicing.replicas=1")


@pytest.mark.parametrize("rule", list(with_patterns()))
def test_a_broken_pattern_is_answered_with_the_rule_and_an_example(rule):
    """Which helm prints, as it is the only value that another alternative would have."""
    (words,) = [part["const"] for part in rule["anyOf"] if "const" in part]
    assert words == f"{rule['description']}, such as {rule['examples'][0]}"
    assert not json_schema.accepts({**rule, "$defs": SCHEMA["$defs"]}, words, "Draft7")


def test_every_pattern_has_a_rule_in_words():
    text = json.dumps({**SCHEMA, "$defs": {**SCHEMA["$defs"], "rule": {}}})
    assert text.count('"pattern": "') == len(list(with_patterns()))


def test_helm_shows_the_value_the_rule_and_an_example():
    with pytest.raises(charted.RefusedError) as caught:
        charted.made("agent.options={packing}")
    said = str(caught.value)
    assert "'packing' does not match pattern" in said
    assert "must be 'an option and its value as one word, such as --packing=spread'" in said


@pytest.mark.parametrize(
    "needs_cdi", ["timeSlicing.replicas=4", "dynamicMig=all", "mps=GPU-8c9f5a3e"]
)
def test_agents_without_cdi_have_nothing_that_needs_it(needs_cdi):
    """As the agent itself would refuse it, once it runs."""
    with pytest.raises(charted.RefusedError, match=r"agent.privileged=true: .* without CDI"):
        charted.made("agent.privileged=true", f"agent.{needs_cdi}")


def test_agents_that_create_mig_instances_have_the_capability_for_it():
    with pytest.raises(
        charted.RefusedError, match=r"agent.dynamicMig=all: the agent needs the ca"
    ):
        charted.made("agent.dynamicMig=all")
    charted.made("agent.dynamicMig=all", "agent.capabilities={SYS_ADMIN}")
    charted.made("agent.dynamicMig=all", "agent.securityContext.capabilities.add={SYS_ADMIN}")
    charted.made("agent.dynamicMig=all", "simulate=h100")


@pytest.mark.parametrize(
    "name",
    [
        *(resource.name for resource in (*device_ids.EITHER, device_ids.CONTROL)),
        names.VMEMORY_MIB_RESOURCE,
        names.DEVICE_RESOURCE,
        "kubernetes.io/gpu",
        "node.kubernetes.io/gpu",
    ],
)
def test_time_slices_are_no_resource_that_the_agent_would_refuse(name):
    with pytest.raises(charted.RefusedError, match=f"agent.timeSlicing.resource={name}: must be"):
        charted.made("agent.timeSlicing.replicas=4", f"agent.timeSlicing.resource={name}")


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (("agent.state=/run/pyvgpu-agent",), "agent.state=/run/pyvgpu-agent: must differ from"),
        (
            ("agent.cdi=/var/lib/pyvgpu",),
            "agent.state=/var/lib/pyvgpu: must differ from agent.cdi",
        ),
        ((f"agentNamespace.name={charted.NAMESPACE}",), "must differ from the namespace of the"),
        ((charted.SECOND, "kubeScheduler.name=default-scheduler"), "the cluster's own kube-sched"),
        (
            ("webhook.enabled=false", "webhook.convert={hami}"),
            r'webhook.convert=\["hami"\]: .* must',
        ),
        (
            (
                "webhook.enabled=false",
                "webhook.imageRules[0].prefix=a,webhook.imageRules[0].to=b/",
            ),
            "webhook.imageRules=.* must be true",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_the_rule(settings, rule):
    with pytest.raises(charted.RefusedError, match=rule):
        charted.made(*settings)


@pytest.mark.parametrize("option", ["--state=/x", "--suspend", "--mps=all"])
def test_options_of_the_agent_that_values_set_are_refused_with_the_value(option):
    rule = f"agent.options has {option.partition('=')[0]}: must be set by the value agent[.]"
    with pytest.raises(charted.RefusedError, match=rule):
        charted.made(f"agent.options={{{option}}}")


@pytest.mark.parametrize("address", ["", "10.96.0.255", "fd00::1", "::ffff:10.0.0.1"])
def test_addresses_of_both_families_are_valid(address):
    ranges = ["fd00::/128", "10.0.0.0/8", f"{address or '10.0.0.1'}/32"]
    more = {"scheduler": {"clusterIP": address}, "networkPolicy": {"apiServer": ranges}}
    check({**charted.VALUES, **{name: {**charted.VALUES[name], **more[name]} for name in more}})


@pytest.mark.parametrize("part", ["webhook", "scheduler"])
def test_two_ports_of_a_pod_differ(part):
    rule = f"{part}.metricsPort=8443: must differ from {part}.port, such as 8444"
    with pytest.raises(charted.RefusedError, match=rule):
        charted.made("scheduler.mode=patch", f"{part}.metricsPort=8443")


def test_each_model_can_be_simulated_in_a_cluster():
    pattern = re.compile(*patterns(SCHEMA["properties"]["simulate"]))
    for model in models.MODELS:
        assert pattern.match(f"{model.key},{model.key}:15")


def test_options_of_single_nodes_are_named_by_a_valid_label():
    with pytest.raises(charted.RefusedError, match="propertyName '-a'"):
        charted.made("agent.nodeConfigs.-a={--packing=spread}")


def test_nodes_have_the_options_that_the_agent_allows_them():
    """All other options of the agent are refused."""
    pattern = re.compile(*patterns(SCHEMA["$defs"]["nodeOptions"]["items"]))
    options = [option for group in device_plugin.GROUPS for option in group.options]
    written = {option.flag: option.flag + "=x" * bool(option.value) for option in options}
    allowed = {flag for flag, word in written.items() if pattern.search(word)}
    assert allowed == set(node_options.ALLOWED)
    assert all(pattern.search(example) for example in node_options.ALLOWED.values())


@pytest.mark.parametrize("name", ["image.tag", "fastExitImage.tag"])
def test_a_tag_that_helm_takes_for_a_number_is_refused_with_the_right_option(name):
    with pytest.raises(charted.RefusedError, match=f"{name}=2: must be a string.*--set-string"):
        charted.made(f"{name}=2")


@pytest.mark.parametrize("field", config.FIELDS, ids=lambda field: field.name)
def test_each_sidecar_setting_is_a_chart_value(field):
    setting = {field.name: yaml.safe_load(field.example)}
    check({**charted.VALUES, "sidecar": {**charted.VALUES["sidecar"], "settings": setting}})


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.from_regex(*patterns(SCHEMA["$defs"]["namespace"]), fullmatch=True),
    st.from_regex(r"[abt0-]{1,4}", fullmatch=True),
)
def test_namespace_patterns_match_alike_in_cel_and_in_the_webhook(pattern, namespace):
    expression = pattern.replace("[!", "[^").replace("*", ".*").replace("?", ".")
    assert bool(re.fullmatch(expression, namespace)) is fnmatch.fnmatchcase(namespace, pattern)
