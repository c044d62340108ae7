"""Agent, scheduler and webhook of this version and a later one, in every mix.

The later version writes records with fields that this one does not know. Each step changes one
component, so it is an upgrade or a downgrade beside the others of either version.
"""

import itertools
import json
from pathlib import Path

import charts
import later_image
import later_version
import pytest
import undisturbed

from pyvgpu import names
from pyvgpu.deviceplugin.grants import grant_log

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

WORKLOADS = {
    "agent": (charts.AGENTS, "daemonset/agent"),
    "scheduler": (charts.NAMESPACE, "deployment/scheduler"),
    "webhook": (charts.NAMESPACE, "deployment/webhook"),
}
# All mixes of versions; neighbours differ in one component, the first and the last as well.
CYCLE = [
    dict(zip(WORKLOADS, mix, strict=True))
    for mix in (
        (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 1, 1),
        (1, 1, 1), (1, 0, 1), (0, 0, 1), (0, 0, 0),
    )
]  # fmt: skip
TAGS = (charts.VERSION, later_image.TAG)
LATER = later_version.FIELD


def become(component, version):
    charts.set_tag(*WORKLOADS[component], TAGS[version])


def annotation_of_node():
    (node,) = json.loads(charts.run("kubectl", "get", "nodes", "--output=json"))["items"]
    return node["metadata"]["annotations"][names.NODE_DEVICES_ANNOTATION]


def test_cycle_has_every_mix_and_changes_one_component_at_a_time():
    mixes = [tuple(mix.values()) for mix in CYCLE]
    assert sorted(mixes) == sorted(itertools.product((0, 1), repeat=3))
    for before, after in itertools.pairwise([mixes[-1], *mixes]):
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_pods_start_and_keep_their_quotas_in_every_mix(space, running, release):
    before = CYCLE[-1]
    for number, mix in enumerate(CYCLE):
        (component,) = (name for name in mix if mix[name] != before[name])
        become(component, mix[component])
        undisturbed.has_devices()
        undisturbed.check(space, running)
        pod = undisturbed.run_beside(space, f"p{number}", 50, 8)
        chosen = pod["metadata"]["annotations"][names.DEVICES_ANNOTATION]
        assert (LATER in chosen) == mix["scheduler"]
        if mix["agent"]:  # an agent of this version may leave what the later one has written
            assert LATER in annotation_of_node()
            state = Path(release["agent"]["state"])
            assert LATER in (state / grant_log.FILE).read_bytes().decode(errors="replace")
        before = mix


def test_ten_upgrades_and_downgrades_of_everything_disturb_no_running_pod(space, running):
    for number in range(10):
        for component in WORKLOADS:
            become(component, (number + 1) % 2)
        undisturbed.check(space, running)
    undisturbed.has_devices()
    undisturbed.run_beside(space, "after", 50, 8)
    assert charts.images() == {charts.VERSION}
