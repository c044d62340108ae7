"""Mistakes in kube-scheduler's configuration are named, each with its remedy."""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml

from pyvgpu import cli, errors
from pyvgpu.controller.scheduler import config_check

PAGE = Path(__file__).parents[3] / "docs/scheduler.md"
SHIPPED = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[1])


def test_the_documented_configuration_is_valid():
    assert config_check.check(SHIPPED) == ()


def but(**changes):
    """Return it with other fields, which are the extender's where it has them."""
    made = copy.deepcopy(SHIPPED)
    (extender,) = made["extenders"]
    for name, value in changes.items():
        where = extender if name in extender else made
        if value is None:
            del where[name]
        else:
            where[name] = value
    return made


def profiles(*percents):
    made = [{"schedulerName": f"s-{n}"} for n in range(len(percents))]
    for profile, percent in zip(made, percents, strict=True):
        if percent is not None:
            profile["percentageOfNodesToScore"] = percent
    return made


@pytest.mark.parametrize(
    ("document", "found", "remedy"),
    [
        pytest.param(
            but(percentageOfNodesToScore=None),
            "percentageOfNodesToScore is not set",
            "percentageOfNodesToScore: 100",
            id="a sample",
        ),
        pytest.param(
            but(percentageOfNodesToScore=50),
            "percentageOfNodesToScore is 50",
            "percentageOfNodesToScore: 100",
            id="a larger sample",
        ),
        pytest.param(
            {**SHIPPED, "profiles": profiles(None, 10)},
            "percentageOfNodesToScore of profile s-1 is 10",
            "percentageOfNodesToScore: 100",
            id="a sample of one profile",
        ),
        pytest.param(
            but(bindVerb=None), "kube-scheduler binds by itself", "bindVerb: bind", id="b"
        ),
        pytest.param(but(filterVerb=None), "does not ask", "filterVerb: filter", id="no filter"),
        pytest.param(
            but(nodeCacheCapable=False), "24 MB for 5,000", "nodeCacheCapable: true", id="whole"
        ),
        pytest.param(but(ignorable=True), "refuse them", "ignorable: false", id="ignorable"),
        pytest.param(but(httpTimeout=None), "httpTimeout is 5 s", "httpTimeout: 30s", id="usual"),
        pytest.param(but(httpTimeout="20s"), "httpTimeout is 20 s", "httpTimeout: 30s", id="20"),
        pytest.param(
            but(httpTimeout="1500ms"), "httpTimeout is 1.5 s", "httpTimeout: 30s", id="ms"
        ),
        pytest.param(but(extenders=None), "none of its extenders", "docs/scheduler.md", id="none"),
        pytest.param(
            but(managedResources=[{"name": "other.io/x"}]),
            "none of its extenders",
            "docs/scheduler.md",
            id="another's",
        ),
    ],
)
def test_each_mistake_is_named(document, found, remedy):
    (problem,) = config_check.check(document)
    assert found in problem.found
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({**SHIPPED, "profiles": profiles(None, 100)}, id="profiles as all"),
        pytest.param(but(httpTimeout="1m30s"), id="two units"),
        pytest.param(but(managedResources=[{"name": "tencent.com/vcuda-core"}]), id="gpu-manager"),
    ],
)
def test_equivalent_configurations_are_valid(document):
    assert config_check.check(document) == ()


@pytest.mark.parametrize("document", [None, [], "x", 7, {}, {"kind": "Policy"}])
def test_another_document_is_refused_with_the_rule(document):
    with pytest.raises(errors.DataError, match="must be KubeSchedulerConfiguration"):
        config_check.check(document)


@pytest.mark.parametrize("field", ["extenders", "profiles"])
@pytest.mark.parametrize("value", [None, 7, "x", [None], [7], [{}], {}])
def test_wrong_types_do_not_raise(field, value):
    config_check.check({**SHIPPED, field: value})


@pytest.mark.slow
def test_the_doctor_checks_the_given_file(tmp_path, capsys):
    file = tmp_path / "scheduler.yaml"
    file.write_text(yaml.safe_dump(but(percentageOfNodesToScore=None)))

    def row():
        cli.main(["doctor", "--json", "--scheduler-config", str(file)])
        *_, last = json.loads(capsys.readouterr().out)["checks"]
        assert last["check"] == "kube-scheduler"
        return last

    assert (row()["state"], row()["remedy"]) == ("limited", "percentageOfNodesToScore: 100")
    file.write_text(yaml.safe_dump(SHIPPED))
    assert row()["state"] == "ok"
    file.write_text("{")
    assert "is not YAML" in row()["found"]
    file.unlink()
    assert "--scheduler-config" in row()["found"]
