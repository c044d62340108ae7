"""The configuration file: valid settings, and messages for invalid ones."""

import re
from pathlib import Path

import pytest

from pyvgpu import errors
from pyvgpu.controller.sidecar import config, controller_settings, marking

pytest.importorskip("yaml", reason="needs PyYAML")

PAGE = Path(__file__).parents[3] / "docs" / "sidecar.md"
DEFAULT = controller_settings.SidecarSettings()


def parse(text):
    return config.parse(text, "s.yaml")


def test_an_empty_file_keeps_the_defaults():
    assert parse("") == parse("{}") == parse("# nothing\n") == DEFAULT


@pytest.mark.parametrize("field", config.FIELDS, ids=lambda field: field.name)
def test_every_example_is_valid(field):
    found = parse(f"{field.name}: {field.example}")
    assert isinstance(found, controller_settings.SidecarSettings)


def test_all_settings():
    found = parse(
        """
        policies:
        - {namespace: train-*, labels: {team: vision}, containers: [log-*]}
        paths: [stop]
        insist: true
        mostWrites: 1
        marginSeconds: 2.5
        fastExitImage: registry.example/exit:1
        fastExitInRegistry: true
        virtualLabels: {type: kwok}
        virtualPulls: false
        """
    )
    assert found.policies == (marking.MarkingPolicy(("log-*",), "train-*", {"team": "vision"}),)
    assert (found.paths, found.insist, found.most_writes) == (frozenset({"stop"}), True, 1)
    assert found.margin_seconds == 2.5
    assert (found.fast_exit.image, found.fast_exit.in_registry) == (
        "registry.example/exit:1",
        True,
    )
    assert (found.virtual.labels, found.virtual.pulls) == ((("type", "kwok"),), False)
    assert found.pull_seconds == DEFAULT.pull_seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fastExitImage: a b", "fastExitImage: a b: must be the name of an image, such as"),
        ("insist: maybe", "insist: maybe: must be true or false, such as insist: true"),
        ("insist: 1", "insist: 1: must be true or false"),
        ("paths: [kill]", "paths: ['kill']: must be some of stop, hybrid, swap, such as paths: ["),
        ("paths: stop", "must be some of"),
        ("workers: 0", "workers: 0: must be a whole number from 1 to 64, such as workers: 4"),
        ("workers: 2.5", "must be a whole number"),
        ("workers: true", "must be a whole number"),
        ("marginSeconds: -1", "must be a number from 0 to 3600"),
        ("marginSeconds: .nan", "must be a number"),
        ("marginSeconds: .inf", "must be a number"),
        ("sweepSeconds: 5 min", "sweepSeconds: 5 min: must be a number from 0 (never) to 86400"),
        ("leaseSeconds: 1", "must be a number from 20"),
        ("mostWrites: 3", "must be 1 or 2"),
        ("policies: {}", "policies: {}: must be a list of {containers: [names]"),
        ("policies: [{containers: []}]", "such as policies: [{namespace: train-*"),
        ("policies: [{container: [x]}]", "must be a list"),
        ("policies: [{containers: [7]}]", "must be a list"),
        ("policies: [x]", "must be a list"),
        ("fastExitImage: ''", "must be the name of an image"),
        ("fastExitImage: 7", "must be the name of an image"),
        ("fastExitNames: [sh]", "must be a list of paths"),
        ("virtualLabels: [x]", "must be labels and their values"),
        ("insists: true", "insists: must be one of: policies, paths, "),
        ("7: true", "7: must be one of"),
        ("- insist", "must be settings and their values, such as insist: true"),
        ("insist: [", "is not YAML"),
        ("a: !!python/object:os.system {}", "is not YAML"),
        ("\x00", "is not YAML"),
    ],
)
def test_an_invalid_setting_is_refused_with_rule_and_example(text, said):
    with pytest.raises(errors.DataError) as raised:
        parse(text)
    assert str(raised.value).startswith("s.yaml: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unreadable_file_is_an_error(tmp_path):
    with pytest.raises(errors.DataError, match="no such file"):
        config.load(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(errors.DataError, match="is not text"):
        config.load(tmp_path / "bytes")


def default_of(field):
    """Return a setting's default in the documentation's notation."""
    value = controller_settings.SidecarSettings()
    for part in field.place.split("."):
        value = getattr(value, part)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset | tuple):
        words = (
            ": ".join(element) if isinstance(element, tuple) else element for element in value
        )
        return ", ".join(sorted(words)) or "none"
    return str(value)


def test_table_in_the_documentation_is_equal():
    rows = re.findall(r"^\| `(\w+): (.+)` \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [
        (field.name, field.example, default_of(field), field.meaning) for field in config.FIELDS
    ]
