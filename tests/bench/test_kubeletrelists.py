"""Times of kubelet's container relists (PLEG), parsed from its log."""

import datetime

import kubeletrelists

NOW = datetime.datetime(2026, 11, 22, 4, 0, 0, tzinfo=datetime.UTC)
EVENT = (
    'I1122 03:20:59.500000   32449 kubelet.go:2737] "SyncLoop (PLEG): event for pod" '
    'pod="test-1/j-x" event={"ID":"fc-1","Type":"ContainerDied","Data":"c201"}'
)


def read(*lines):
    return list(kubeletrelists.read(lines, NOW))


def test_relist_has_a_container_and_a_time():
    at = datetime.datetime(2026, 11, 22, 3, 20, 59, 500_000, tzinfo=datetime.UTC).timestamp()
    assert read(EVENT) == [kubeletrelists.Relist("test-1/j-x", "c201", at)]


def test_other_log_lines_are_ignored():
    started = EVENT.replace("ContainerDied", "ContainerStarted")
    assert read("", "panic", started, EVENT.replace("I1122", "E1122"), EVENT[:90]) == []


def test_log_of_last_december_belongs_to_last_year():
    (relist,) = read(EVENT.replace("I1122", "I1231"))
    assert datetime.datetime.fromtimestamp(relist.at, datetime.UTC).year == 2025
