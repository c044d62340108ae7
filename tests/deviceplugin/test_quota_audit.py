"""Audit findings from NVML's usage of processes and the grants."""

import dataclasses

import pytest
from granted import GIB

from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.audit import quota_audit
from pyvgpu.deviceplugin.audit.quota_audit import ViolationKind
from pyvgpu.deviceplugin.containers.process_owner import Whose

A, B, FREE = "GPU-a", "GPU-b", "GPU-c"
LABELS = {A: "gpu0", B: "gpu1", FREE: "gpu2"}


def grant(number, uuid, vcore=30, size=2 * GIB):
    owner = grants.Owner(f"uid-{number}", "team", f"pod-{number}", "main")
    share = datatypes.NodeShare(uuid, vcore, size)
    return grants.Grant(f"{number:016x}", frozenset({"c"}), 1.0, owner, shares=(share,))


FIRST, SECOND, WHOLE = grant(1, A), grant(2, A), grant(3, B, 100, 80 * GIB)
GRANTS = {granted.id: granted for granted in (FIRST, SECOND, WHOLE)}
IN_FIRST, IN_SECOND = Whose(FIRST.id, "uid-1", "x"), Whose(SECOND.id, "uid-2", "y")
IN_WHOLE = Whose("", "uid-3", "z")


def seen(held, whose, shimmed=()):
    return quota_audit.ProcessSnapshot(held, whose, frozenset(shimmed))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(seen({A: {10: GIB}}, {10: IN_FIRST}, [10]), [], id="no finding"),
        pytest.param(seen({B: {10: 70 * GIB}}, {10: IN_WHOLE}), [], id="a whole device, no shim"),
        pytest.param(seen({FREE: {10: GIB}}, {10: Whose()}), [], id="a device without grants"),
        pytest.param(seen({A: {10: GIB}}, {}), [], id="an ended process"),
        pytest.param(
            seen({A: {10: GIB}}, {10: IN_FIRST}),
            [
                (
                    ViolationKind.NO_SHIM,
                    (10,),
                    "process 10 of team/pod-1/main uses gpu0 without the shim: 1GiB",
                )
            ],
            id="without the shim",
        ),
        pytest.param(
            seen({B: {10: GIB}}, {10: IN_FIRST}, [10]),
            [
                (
                    ViolationKind.FOREIGN,
                    (10,),
                    "process 10 of team/pod-1/main uses gpu1 without a grant for it",
                )
            ],
            id="another's device",
        ),
        pytest.param(
            seen({A: {10: GIB}}, {10: Whose("", "uid-3", "z")}),
            [
                (
                    ViolationKind.FOREIGN,
                    (10,),
                    "process 10 of team/pod-3 uses gpu0 without a grant for it",
                )
            ],
            id="a whole device's container on a shared one",
        ),
        pytest.param(
            seen({A: {10: GIB}}, {10: Whose("", "uid-9", "z")}),
            [(ViolationKind.FOREIGN, (10,), "process 10 of pod uid-9 uses gpu0 without a grant")],
            id="a pod without a grant",
        ),
        pytest.param(
            seen({A: {10: GIB}}, {10: Whose("f" * 16)}),
            [
                (
                    ViolationKind.FOREIGN,
                    (10,),
                    "process 10 of grant ffffffffffffffff uses gpu0 without",
                )
            ],
            id="an ended grant",
        ),
        pytest.param(
            seen({A: {10: GIB}}, {10: Whose()}),
            [
                (
                    ViolationKind.OUTSIDE,
                    (10,),
                    "process 10 of the node itself uses gpu0 outside any container",
                )
            ],
            id="the node's own",
        ),
        pytest.param(
            seen({A: {10: GIB, 11: GIB + (65 << 20)}}, {10: IN_FIRST, 11: IN_FIRST}, [10, 11]),
            [
                (
                    ViolationKind.ABOVE,
                    (10, 11),
                    "team/pod-1/main holds 2.1GiB of gpu0, its quota is 2GiB",
                )
            ],
            id="above its quota, all together",
        ),
        pytest.param(
            seen({A: {10: 2 * GIB + (64 << 20)}}, {10: IN_FIRST}, [10]), [], id="a little above"
        ),
        pytest.param(
            seen({A: {10: 2 * GIB, 11: 2 * GIB}}, {10: IN_FIRST, 11: IN_SECOND}, [10, 11]),
            [],
            id="two neighbours",
        ),
        pytest.param(
            seen({A: {10: 3 * GIB}}, {10: IN_FIRST}),
            [
                (
                    ViolationKind.NO_SHIM,
                    (10,),
                    "process 10 of team/pod-1/main uses gpu0 without the shim",
                ),
                (ViolationKind.ABOVE, (10,), "team/pod-1/main holds 3GiB of gpu0"),
            ],
            id="both",
        ),
    ],
)
def test_findings_of_the_audit(now, expected):
    found = quota_audit.find(now, GRANTS, LABELS)
    assert [(finding.kind, finding.pids) for finding in found] == [
        (kind, pids) for kind, pids, _ in expected
    ]
    for finding, (_, _, text) in zip(found, expected, strict=True):
        assert finding.text.startswith(text)


def test_finding_counts_after_two_polls():
    first = quota_audit.find(seen({A: {10: GIB}}, {10: IN_FIRST}), GRANTS, LABELS)
    other = quota_audit.find(seen({A: {11: GIB}}, {11: IN_FIRST}), GRANTS, LABELS)
    assert quota_audit.confirmed([], first) == []
    assert quota_audit.confirmed(first, other) == []
    assert quota_audit.confirmed(first, first) == first


def test_finding_above_quota_does_not_depend_on_the_process():
    def above(pid):
        return quota_audit.find(seen({A: {pid: 3 * GIB}}, {pid: IN_FIRST}, [pid]), GRANTS, LABELS)

    assert quota_audit.confirmed(above(10), above(11)) == above(11)


def test_lowered_quota_counts_at_once():
    less = dataclasses.replace(FIRST, shares=(datatypes.NodeShare(A, 30, GIB),))
    now = seen({A: {10: 2 * GIB}}, {10: IN_FIRST}, [10])
    assert not quota_audit.find(now, GRANTS, LABELS)
    assert [finding.kind for finding in quota_audit.find(now, {less.id: less}, LABELS)] == [
        ViolationKind.ABOVE
    ]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(seen({A: {10: GIB}}, {10: IN_FIRST}), [10], id="without the shim"),
        pytest.param(seen({A: {10: GIB}}, {10: Whose()}), [], id="the node's own"),
        pytest.param(seen({A: {10: GIB}}, {10: Whose("f" * 16)}), [], id="a forgotten grant"),
        pytest.param(seen({A: {10: GIB}}, {10: Whose("", "uid-9")}), [10], id="no grant at all"),
        pytest.param(
            seen({A: {10: GIB, 11: 2 * GIB}}, {10: IN_FIRST, 11: IN_FIRST}, [10, 11]),
            [11],
            id="the largest above a quota",
        ),
        pytest.param(
            seen({A: {10: GIB, 11: 2 * GIB}}, {10: IN_FIRST, 11: IN_FIRST}, [11]),
            [10],
            id="processes without the shim first",
        ),
    ],
)
def test_processes_chosen_to_be_killed(now, expected):
    wrong = quota_audit.find(now, GRANTS, LABELS)
    assert [pid for _, pid in quota_audit.doomed(wrong, now, GRANTS)] == expected
