"""The status page's manifests: valid names, version and options; read-only RBAC rules."""

import argparse

import charted
import release

from pyvgpu.cli import status_page as command
from pyvgpu.controller.status import guard

THINGS = charted.part(["status/"], "statusPage.enabled=true")


def find(kind, name):
    (found,) = (
        thing for thing in THINGS if (thing["kind"], thing["metadata"]["name"]) == (kind, name)
    )
    return found


def test_image_options_and_ports_match_this_version():
    spec = find("Deployment", "status-page")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == f"localhost/pyvgpu:{release.version()}"
    name, *options = container["args"]
    assert name == "status-page"
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    command.prepare_parser(parser)
    parsed = parser.parse_args(options)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert parsed.serve == f"[::]:{ports['https']}"
    assert parsed.listen == f"[::]:{ports['metrics']}"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_service_secret_and_configmap_have_the_expected_names():
    assert find("Service", command.NAME)
    for kind in ("Secret", "ConfigMap"):
        assert "data" not in find(kind, command.NAME)  # else applying it would overwrite them
    rules = find("Role", "status-page")["rules"]
    assert [(rule["resources"], rule["resourceNames"], rule["verbs"]) for rule in rules] == [
        (["secrets"], [command.NAME], ["get", "update"]),
        (["configmaps"], [command.NAME], ["get", "patch"]),
    ]


def test_rbac_rules_allow_only_list_watch_and_access_reviews():
    rules = find("ClusterRole", "pyvgpu-status-page")["rules"]
    for rule in rules:
        if rule["resources"] in (["tokenreviews"], ["subjectaccessreviews"]):
            assert rule["verbs"] == ["create"]
        else:
            assert set(rule["verbs"]) == {"list", "watch"}
            assert "secrets" not in rule["resources"]


def test_claims_are_shown_and_may_be_read_only_with_dra():
    plain, more = (
        charted.made("statusPage.enabled=true", *settings)
        for settings in ((), ("dra.enabled=true",))
    )
    for things, enabled in ((plain, False), (more, True)):
        (container,) = things["Deployment", "status-page"]["spec"]["template"]["spec"][
            "containers"
        ]
        assert ("--claims" in container["args"]) == enabled
        rules = things["ClusterRole", "pyvgpu-status-page"]["rules"]
        found = {name for rule in rules for name in rule["resources"] if "resource" in name}
        assert found == (
            {"resourceclaims", "resourceclaimtemplates", "resourceslices"} if enabled else set()
        )


def test_viewer_role_allows_the_checked_path():
    (rule,) = find("ClusterRole", "pyvgpu-status-viewer")["rules"]
    assert rule == {"nonResourceURLs": [guard.PATH], "verbs": [guard.VERB]}
