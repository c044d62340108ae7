"""Rules for values: the part of JSON Schema that is known here means what it means everywhere."""

import contextlib
import fnmatch
import json
import re

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvgpu.controller.sidecar import config
from pyvgpu.manifests import rendering, schema, values

CHART = rendering.Chart.read(rendering.folder())
KEYWORDS = {
    *("$ref", "additionalProperties", "default", "description", "enum", "examples", "items"),
    *("maximum", "minimum", "pattern", "properties", "required", "type"),
}


def rules(rule, at=""):
    yield at, rule
    for part in ("properties", "$defs"):
        for name, below in rule.get(part, {}).items():
            yield from rules(below, f"{at}.{name}")
    for part in ("items", "additionalProperties"):
        if isinstance(rule.get(part), dict):
            yield from rules(rule[part], f"{at}[]")


RULES = [pytest.param(rule, id=at or "all") for at, rule in rules(CHART.schema)]


@pytest.mark.parametrize("rule", RULES)
def test_the_schema_has_nothing_that_is_not_known(rule):
    assert set(rule) <= KEYWORDS | {"$schema", "$defs", "title"}
    pattern = rule.get("pattern", "^$")
    assert pattern.startswith("^")
    assert pattern.endswith("$")


def whole(rule):
    """Return a rule with what its reference says."""
    if "$ref" not in rule:
        return rule
    return {**CHART.schema["$defs"][rule["$ref"].rpartition("/")[2]], **rule}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_an_example_that_is_valid(rule):
    known = whole(rule)
    if "type" not in known or known.get("properties", {}).keys() >= {"agent", "global"}:
        return
    if "examples" not in known:
        assert known == {"type": "object"}  # whatever others put there
        return
    for example in known["examples"]:
        schema.check(example, {**known, "$defs": CHART.schema["$defs"]})


def test_the_defaults_are_valid_and_every_one_has_a_rule():
    schema.check(CHART.values, CHART.schema)

    def names(defaults, rule, at):
        for key, value in defaults.items():
            known = whole(rule["properties"][key])
            yield f"{at}{key}"
            if isinstance(value, dict) and "properties" in known:
                yield from names(value, known, f"{at}{key}.")

    said = {f"{at}"[1:].replace("[]", "") for at, rule in rules(CHART.schema)}
    found = set(names(CHART.values, CHART.schema, ""))
    assert {it for it in found if it not in said and it.split(".")[-1] not in RESOURCES} == set()


RESOURCES = ("requests", "limits")
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 12)
    | st.sampled_from(["", "x", "gaia", "a b", "/x"]),
    lambda it: st.lists(it, max_size=2) | st.dictionaries(st.sampled_from(["name", "x"]), it),
    max_leaves=3,
)
PLACES = [
    f"{part}.{name}" if isinstance(CHART.values[part], dict) else part
    for part in CHART.values
    for name in (CHART.values[part] if isinstance(CHART.values[part], dict) else [""])
]


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from([*PLACES, "agent.nothing"]), ANY), min_size=1, max_size=3)
)
def test_what_is_valid_here_is_valid_by_json_schema(changes):
    changed = json.loads(json.dumps(CHART.values))
    for place, value in changes:
        part, _, name = place.partition(".")
        if name:
            changed[part][name] = value
        else:
            changed[part] = value
            break
    broken = list(jsonschema.Draft7Validator(CHART.schema).iter_errors(changed))
    with pytest.raises(schema.ValuesError) if broken else contextlib.nullcontext():
        schema.check(changed, CHART.schema)


NAMESPACE = (
    "the name of a namespace, or a pattern: * is any text, ? one character, [ab] one of these, "
    '[!ab] one other, such as "team-*"'
)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("webhook.replicas=0", "webhook.replicas=0: must be from 1 to 9, such as 2"),
        ("webhook.replicas=two", 'webhook.replicas="two": must be an integer, such as 2'),
        (
            "image.tag=2",
            'image.tag=2: must be a string, such as "0.1.0"; quote it in YAML, or give '
            "--set-string image.tag=2",
        ),
        ("profile=gpu", 'profile="gpu": must be "pyvgpu" or "gaia", such as "gaia"'),
        (
            "agent.state=var",
            'agent.state="var": must be an absolute path of plain characters, such as '
            '"/var/lib/pyvgpu"',
        ),
        ("dra.enable=true", "dra.enable: there is no such value; dra has enabled, models"),
        (
            "agent.options={packing}",
            'agent.options[0]="packing": must be an option with its value in one word, such as '
            '"--packing=spread"',
        ),
        ("scheduler.mode=null", "scheduler: must have mode"),
        (
            "webhook.imageRules[0].to=a/,webhook.imageRules[0].namespaces={1}",
            'webhook.imageRules[0].namespaces[0]=1: must be a string, such as "team-*"; quote it '
            "in YAML, or give --set-string webhook.imageRules[0].namespaces[0]=1",
        ),
        (
            "webhook.imageRules[0].to=a/,webhook.imageRules[0].namespaces={team-(a}",
            f'webhook.imageRules[0].namespaces[0]="team-(a": must be {NAMESPACE}',
        ),
        (
            "webhook.imageRules[0].to=a/,webhook.imageRules[0].namespaces={[^t]*}",
            f'webhook.imageRules[0].namespaces[0]="[^t]*": must be {NAMESPACE}',
        ),
        ("webhook.imageRules[0].prefix=a/", "webhook.imageRules[0]: must have to"),
        (
            "sidecar.settings.policies[0].namespace=train-?",
            "sidecar.settings.policies[0]: must have containers",
        ),
        (
            "sidecar.settings.insits=true",
            "sidecar.settings.insits: there is no such value; sidecar.settings has "
            + ", ".join(it.name for it in config.FIELDS),
        ),
    ],
)
def test_what_breaks_a_rule_is_said_with_the_rule_and_an_example(setting, said):
    merged = values.merge(CHART.values, values.apply({}, setting))
    with pytest.raises(schema.ValuesError) as caught:
        schema.check(merged, CHART.schema)
    assert str(caught.value) == said


@pytest.mark.parametrize("field", config.FIELDS, ids=lambda it: it.name)
def test_a_setting_of_the_sidecar_file_is_a_value_of_the_chart(field):
    given = {"sidecar": {"settings": {field.name: yaml.safe_load(field.example)}}}
    schema.check(values.merge(CHART.values, given), CHART.schema)


@settings(max_examples=300)
@given(
    st.from_regex(CHART.schema["$defs"]["namespace"]["pattern"], fullmatch=True),
    st.from_regex(r"[abt0-]{1,4}", fullmatch=True),
)
def test_a_pattern_of_namespaces_means_the_same_to_the_api_server_and_to_the_webhook(
    pattern, namespace
):
    expression = pattern.replace("[!", "[^").replace("*", ".*").replace("?", ".")
    assert bool(re.fullmatch(expression, namespace)) is fnmatch.fnmatchcase(namespace, pattern)
