"""Rewriting of image names by an administrator's rules."""

import json

import pytest
import small_kubelet
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu import errors
from pyvgpu.controller.webhook import imagenames, review

RULES = r"""
- {prefix: docker.io/, to: mirror.example/docker.io/, namespaces: [team-*]}
- {pattern: '(gcr|quay)\.io/(.+)', to: 'mirror.example/\1/\2'}
- {prefix: ghcr.io/, to: ghcr.io/our-cache/}
"""


@pytest.fixture
def rules(tmp_path):
    return load(tmp_path, RULES)


def load(folder, text):
    file = folder / "rules.yaml"
    file.write_text(text)
    return imagenames.load(file)


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ("nginx", "docker.io/library/nginx"),
        ("nginx:1@sha256:ab", "docker.io/library/nginx:1@sha256:ab"),
        ("team/app:2", "docker.io/team/app:2"),
        ("docker.io/nginx", "docker.io/library/nginx"),
        ("docker.io/team/app", "docker.io/team/app"),
        ("quay.io/a", "quay.io/a"),
        ("host:5000/a", "host:5000/a"),
        ("localhost/a", "localhost/a"),
    ],
)
def test_a_name_is_fully_qualified(image, whole):
    assert imagenames.whole_name(image) == whole


@pytest.mark.parametrize(
    ("image", "namespace", "renamed"),
    [
        ("nginx:1", "team-a", "mirror.example/docker.io/library/nginx:1"),
        ("nginx:1", "other", "nginx:1"),
        ("quay.io/a/b@sha256:ab", "other", "mirror.example/quay/a/b@sha256:ab"),
        ("quay.io.evil/a", "other", "quay.io.evil/a"),
        ("ghcr.io/a", "x", "ghcr.io/our-cache/a"),
        ("mirror.example/docker.io/a", "team-a", "mirror.example/docker.io/a"),
        ("localhost/a", "team-a", "localhost/a"),
    ],
)
def test_the_first_matching_rule_applies(rules, image, namespace, renamed):
    assert imagenames.rename(image, namespace, rules) == renamed
    assert imagenames.rename(renamed, namespace, rules) == renamed


NAMES = st.text("abc./:@", max_size=20)
PREFIXES = st.sampled_from(["docker.io/", "quay.io/", "a", "docker.io/library/a"])


@given(NAMES, st.lists(st.tuples(PREFIXES, PREFIXES), max_size=3))
def test_rewriting_is_idempotent_for_any_rules(tmp_path_factory, image, pairs):
    text = json.dumps([{"prefix": old, "to": f"m.example/{new}"} for old, new in pairs])
    made = load(tmp_path_factory.mktemp("rules"), text)
    once = imagenames.rename(image, "n", made)
    assert imagenames.rename(once, "n", made) == once


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: b", "must be a list of rules"),
        ("[", "is not YAML"),
        ("- docker.io", "rule 1: docker.io: must have a prefix or a pattern"),
        ("- {prefix: a, pattern: b, to: c/}", "must have a prefix or a pattern"),
        ("- {prefix: a, to: c/, more: d}", "must have a prefix or a pattern"),
        ("- {prefix: a, to: 7}", "must have a prefix or a pattern"),
        ("- {prefix: a}", "to '': must begin with a registry and a slash"),
        ("- {prefix: a, to: mirror}", "must begin with a registry and a slash"),
        ("- {pattern: '(.*)', to: '\\1/x'}", "must begin with a registry and a slash"),
        ("- {pattern: '(', to: m/}", "rule 1: pattern '\\(' to 'm/': missing \\)"),
        ("- {pattern: 'a', to: 'm/\\2'}", "invalid group reference"),
        ("- {prefix: a, to: m/, namespaces: team}", "namespaces team: must be a list"),
    ],
)
def test_invalid_rules_are_refused(tmp_path, text, why):
    with pytest.raises(errors.DataError, match=why):
        load(tmp_path, text)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(errors.DataError, match="--image-rules .*: no such file"):
        imagenames.load(tmp_path / "none")


def ask(rules, thing, former=None, resource="pods", operation="CREATE"):
    request = review.AdmissionRequest("u", operation, resource, "team-a", thing, former or {})
    return small_kubelet.apply(thing, imagenames.mutation(rules)(request).operations)


def images(pod):
    return {
        container["name"]: container["image"]
        for part in pod["spec"].values()
        for container in part
    }


def test_all_containers_of_a_new_pod_are_renamed(rules):
    pod = {
        "spec": {
            "initContainers": [{"name": "i", "image": "a"}],
            "containers": [{"name": "c", "image": "quay.io/b"}, {"name": "d", "image": "m/x"}],
        }
    }
    assert images(ask(rules, pod)) == {
        "i": "mirror.example/docker.io/library/a",
        "c": "mirror.example/quay/b",
        "d": "mirror.example/docker.io/m/x",
    }


def test_only_new_ephemeral_containers_are_renamed(rules):
    former = {"spec": {"containers": [{"name": "c", "image": "a"}]}}
    old = {"name": "old", "image": "b"}
    former["spec"]["ephemeralContainers"] = [old]
    thing = {"spec": {**former["spec"]}}
    thing["spec"]["ephemeralContainers"] = [old, {"name": "new", "image": "b"}]
    changed = ask(rules, thing, former, "pods/ephemeralcontainers", "UPDATE")
    assert images(changed) == {
        "c": "a",
        "old": "b",
        "new": "mirror.example/docker.io/library/b",
    }


@pytest.mark.parametrize("spec", [None, {"containers": None}, {"containers": [7, {"image": 7}]}])
def test_malformed_containers_stay_unchanged(rules, spec):
    assert ask(rules, {"spec": spec}) == {"spec": spec}


def test_updates_of_pods_are_ignored(rules):
    pod = {"spec": {"containers": [{"name": "c", "image": "a"}]}}
    assert ask(rules, pod, pod, operation="UPDATE") == pod
