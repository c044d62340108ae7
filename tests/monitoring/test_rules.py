"""Alert rules and dashboard: they use existing metrics, and alerts fire when they should."""

import re
import subprocess
from pathlib import Path

import alerts
import debian
import pytest
import yaml
from generator import measures

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bpyvgpu_[a-z_]*[a-z](?![a-z_(])")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
RULES = alerts.rules()


@pytest.fixture(scope="module")
def promtool():
    return debian.unpacked("bookworm", "prometheus", component="main") / "usr/bin/promtool"


@pytest.fixture(scope="module")
def shown():
    """Return the labels of each series that any program exports, by name."""
    found = {}
    for measure in measures.measures(ROOT):
        more = ("le",) if measure.kind == "histogram" else ()
        for suffix in SUFFIXES.get(measure.kind, ("",)):
            found.setdefault(measure.name + suffix, set()).update(measure.labels, more)
    return found


def panels():
    return [panel for panel in alerts.DASHBOARD["panels"] if panel["type"] != "row"]


def expressions():
    """Return all PromQL expressions, each with the alert, panel or variable that uses it."""
    asked = [(rule["alert"], rule["expr"]) for rule in RULES]
    for panel in panels():
        asked += [(panel["title"], target["expr"]) for target in panel["targets"]]
    for variable in alerts.DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            asked.append((variable["name"], variable["definition"]))
    return asked


def ran(promtool, *arguments):
    done = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_queried_metric_is_exported_by_a_program(where, expression, shown):
    plain = re.sub(r"\{__name__=~.*?\}", " ", expression)
    names = set(NAME.findall(plain))
    names |= {
        f"pyvgpu_{word}_certificate_expiry_seconds"
        for group in re.findall(r"pyvgpu_\(([a-z|]+)\)_certificate_expiry_seconds", expression)
        for word in group.split("|")
    }
    assert names
    assert names <= shown.keys()


def test_every_queried_label_exists(shown):
    of_prometheus = {"instance", "job", "__name__", "le"}
    for where, expression in expressions():
        for name, matched in re.findall(r"(pyvgpu_[a-z_]+)\{([^}]*)\}", expression):
            labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matched))
            assert labels <= shown[name] | of_prometheus, (where, name)


def test_promtool_accepts_the_rules(promtool):
    code, said = ran(promtool, "check", "rules", "--lint=all", "--lint-fatal", alerts.RULES)
    assert code == 0, said
    assert f"SUCCESS: {len(RULES)} rules found" in said


@pytest.mark.slow
def test_each_alert_fires_exactly_when_it_should(promtool, tmp_path):
    file = tmp_path / "cases.yaml"
    file.write_text(alerts.text(alerts.CASES))
    code, said = ran(promtool, "test", "rules", file)
    assert code == 0, said


def test_each_alert_has_a_case_that_fires_and_one_that_does_not():
    for rule in RULES:
        cases = [case for case in alerts.CASES if case.alert == rule["alert"]]
        assert {case.labels is None for case in cases} == {True, False}, rule["alert"]


def test_broken_rule_fails(promtool, tmp_path):
    case = next(
        candidate for candidate in alerts.CASES if candidate.alert == "PyvgpuDeviceUnhealthy"
    )
    document = yaml.safe_load(alerts.text([case]))
    broken = tmp_path / "rules.yaml"
    broken.write_text(alerts.RULES.read_text().replace("pyvgpu_device_healthy == 0", "vector(0)"))
    document["rule_files"] = [str(broken)]
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump(document))
    assert ran(promtool, "test", "rules", file)[0] != 0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_has_a_severity_and_a_description(rule):
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert len(rule["annotations"]["description"]) > 30


def test_promtool_accepts_the_dashboards_queries(promtool, tmp_path):
    asked = [
        re.sub(r"\$__\w+", "5m", re.sub(r'"\$\w+"', '".*"', target["expr"]))
        for panel in panels()
        for target in panel["targets"]
    ]
    rules = [{"record": f"asked:{at}", "expr": expression} for at, expression in enumerate(asked)]
    file = tmp_path / "asked.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    code, said = ran(promtool, "check", "rules", file)
    assert code == 0, said


def test_documented_query_divides_a_devices_power_among_its_containers(promtool, tmp_path):
    text = (ROOT / "docs/monitoring.md").read_text()
    (expression,) = re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    labels = 'namespace="team",pod="{pod}",container="main",uuid="GPU-a"'
    busy = f"pyvgpu_container_busy_seconds_total{{{labels}}}"
    wanted = {"one": 50.0, "two": 100.0}
    case = {
        "interval": "1m",
        "input_series": [
            {"series": 'DCGM_FI_DEV_POWER_USAGE{UUID="GPU-a",gpu="0"}', "values": "200+0x10"},
            {"series": busy.replace("{pod}", "one"), "values": "0+15x10"},
            {"series": busy.replace("{pod}", "two"), "values": "0+30x10"},
        ],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "10m",
                "exp_samples": [
                    {"labels": f"{{{labels.replace('{pod}', pod)}}}", "value": watts}
                    for pod, watts in wanted.items()
                ],
            }
        ],
    }
    file = tmp_path / "power.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [case]}))
    code, said = ran(promtool, "test", "rules", file)
    assert code == 0, said


def test_dashboard_panels_do_not_overlap():
    taken = set()
    assert len({panel["id"] for panel in alerts.DASHBOARD["panels"]}) == len(
        alerts.DASHBOARD["panels"]
    )
    for panel in alerts.DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not own & taken, panel["title"]
        taken |= own


def test_dashboard_uses_the_source_variable():
    sources = {panel["datasource"]["uid"] for panel in panels()}
    assert sources == {"${source}"}
    assert all(panel["title"] and panel["targets"] for panel in panels())


def test_documentation_has_a_row_for_each_alert():
    text = (ROOT / "docs" / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(Pyvgpu\w+)` \| (\w+) \|", text, re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in RULES]
