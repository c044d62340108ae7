"""What is installed without helm, and how both render the same templates."""

import json

import charts
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyvgpu import errors
from pyvgpu.manifests import values

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SECOND = "scheduler.mode=second,kubeScheduler.image=own/kube-scheduler:1"
PROFILES = (
    "profile=pyvgpu",
    "simulate=h100:2",
    "profile=gaia",
    "profile=gaia,scheduler.mode=patch",
    SECOND,
    "dra.enabled=true",
    "agent.privileged=true",
    "agent.audit=true",
    "webhook.convert={hami},webhook.environmentPolicy=true",
    "webhook.imageRules[0].prefix=docker.io/,webhook.imageRules[0].to=mirror.example/",
    "agent.enabled=false,sidecar.enabled=false,webhook.enabled=false",
    f"{charts.MONITORED},monitoring.dashboard.enabled=true,monitoring.labels.release=stack",
    "sidecar.settings.policies[0].namespace=train-?,"
    "sidecar.settings.policies[0].containers={istio-proxy}",
    "sidecar.settings=null,webhook.imageRules[0].prefix=a/,webhook.imageRules[0].to=b/",
    "webhook.allowHostPID={node-*},scheduler.mode=patch,scheduler.resync=86400",
    "networkPolicy.apiServer={10.0.0.10/32},statusPage.enabled=true",
)
TEXT = st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), max_size=8)
SWITCH = st.booleans()
OBJECTS = st.lists(st.dictionaries(st.sampled_from(["key", "on", "1e3"]), TEXT), max_size=2)
NAMESPACE = st.sampled_from(["*", "team-?", "[!t]*", "team-(a", "[^t]*", 1])
IMAGE_RULE = st.fixed_dictionaries(
    {"to": st.just("mirror.example/")},
    optional={"prefix": TEXT, "namespaces": st.lists(NAMESPACE, max_size=2)},
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "policies": st.lists(
            st.fixed_dictionaries(
                {"containers": st.lists(TEXT, max_size=2)},
                optional={
                    "namespace": NAMESPACE,
                    "labels": st.dictionaries(st.sampled_from(["app", "on"]), TEXT),
                },
            ),
            max_size=2,
        ),
        "insist": SWITCH,
        "workers": st.sampled_from([1, 64]),
        "insits": SWITCH,
    },
)
RANDOM = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.sampled_from(["pyvgpu", "gaia", "other"]),
        "simulate": st.sampled_from(["", "t4", "h100:2,t4"]),
        "image": st.fixed_dictionaries({"name": st.sampled_from(["a/b", "c"]), "tag": TEXT}),
        "imagePullSecrets": st.lists(st.just({"name": "one"}), max_size=2),
        "networkPolicy": st.fixed_dictionaries(
            {"enabled": SWITCH},
            optional={"apiServer": st.lists(st.sampled_from(["10.0.0.1/32", "10.0.0.1"]))},
        ),
        "monitoring": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(st.sampled_from(["release", "on"]), TEXT),
                "rules": st.fixed_dictionaries({"enabled": SWITCH}),
                "podMonitor": st.fixed_dictionaries(
                    {"enabled": SWITCH}, optional={"interval": st.sampled_from(["", "9s", "9"])}
                ),
                "dashboard": st.fixed_dictionaries({"enabled": SWITCH}),
            },
        ),
        "podDisruptionBudget": st.fixed_dictionaries({"enabled": SWITCH}),
        "dra": st.fixed_dictionaries({"enabled": SWITCH}),
        "scheduler": st.fixed_dictionaries(
            {"mode": st.sampled_from(["none", "patch", "second"])},
            optional={
                "clusterIP": st.sampled_from(["", "10.96.0.50"]),
                "resync": st.sampled_from([0, 60, 86401]),
            },
        ),
        "kubeScheduler": st.fixed_dictionaries({"image": st.sampled_from(["", "a:1"])}),
        "agent": st.fixed_dictionaries(
            {},
            optional={
                "enabled": SWITCH,
                "privileged": SWITCH,
                "audit": SWITCH,
                "besideNvidia": SWITCH,
                "options": st.lists(TEXT.map("--x={}".format), max_size=2),
                "tolerations": OBJECTS,
                "affinity": st.dictionaries(TEXT, OBJECTS, max_size=2),
                "nodeSelector": st.dictionaries(TEXT, TEXT, max_size=2) | st.none(),
                "resources": st.just({"limits": None}) | st.just({"requests": {"cpu": 2}}),
                "volumes": OBJECTS,
            },
        ),
        "webhook": st.fixed_dictionaries(
            {},
            optional={
                "enabled": SWITCH,
                "replicas": st.integers(0, 10),
                "claims": st.lists(st.sampled_from(["*", "team-*"]), max_size=2),
                "convert": st.lists(st.sampled_from(["hami", "nvidia"]), max_size=2),
                "imageRules": st.lists(IMAGE_RULE, max_size=2) | OBJECTS,
                "allowHostPID": st.lists(st.sampled_from(["*", "team-*"]), max_size=2),
                "stateWriters": st.lists(st.sampled_from(["a:b", "c"]), max_size=2),
            },
        ),
        "sidecar": st.fixed_dictionaries(
            {"enabled": SWITCH}, optional={"settings": SETTINGS | st.none()}
        ),
    },
)


def both(folder, given, namespace):
    """Return what we make of values, and helm; nothing where one makes nothing of them."""
    try:
        ours = charts.objects(*charts.CHART.documents(given, namespace))
    except errors.DataError:
        ours = None
    file = charts.write(folder / "values.yaml", given)
    done = charts.template(file, namespace)
    return ours, None if done.returncode else charts.objects(done.stdout)


@pytest.mark.parametrize("setting", PROFILES)
def test_helm_makes_the_same_of_each_profile(tmp_path, setting):
    ours, helms = both(tmp_path, values.apply({}, setting), "vgpu")
    assert ours == helms is not None


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RANDOM)
def test_helm_makes_the_same_of_any_values(tmp_path, what):
    ours, helms = both(tmp_path, what, "vgpu")
    assert ours == helms


def test_the_chart_has_nothing_that_helm_frowns_upon():
    said = charts.run("helm", "lint", "--strict", charts.rendering.folder())
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize(
    "setting", [f"profile=gaia,dra.enabled=true,{charts.MONITORED}", SECOND, "agent.audit=true"]
)
def test_kubernetes_knows_all_that_is_made(monitoring_kinds, setting):
    texts = charts.CHART.documents(values.apply({}, setting), "default")
    things = charts.listed(
        it
        for it in map(yaml.safe_load, texts)
        if it["kind"] != "Namespace" and it["metadata"].get("namespace") != charts.AGENTS
    )
    command = ("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-")
    said = charts.run(*command, text=json.dumps(things))
    assert len(said.splitlines()) == len(things["items"])
