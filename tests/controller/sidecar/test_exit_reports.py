"""Exit reports of the node part, and how the controller applies them."""

import datetime

import pod_objects as make
import pytest
import small_kubelet as model

from pyvgpu.controller.sidecar import exit_reports, node_requests, reconcile, records, sidecar_pods

AT = 1_795_255_200.9  # make.AT, and most of a second
MAIN = node_requests.Running("main", "containerd://main", 0, AT)
LOG = node_requests.Running("log", "containerd://log", None)


def at_work(*containers, **more):
    main = make.container("main", make.running("containerd://main"))
    return sidecar_pods.read(make.pod(main, *(containers or [make.sidecar()]), **more))


def test_a_report_has_the_exit_of_each_main_container():
    claim = exit_reports.see(at_work(), [MAIN, LOG])
    at = datetime.datetime.fromisoformat("2026-11-21T10:00:00+00:00")
    assert claim == exit_reports.ExitReport(
        "uid-1", {"main": exit_reports.End("containerd://main", 0, at)}
    )


@pytest.mark.parametrize(
    ("pod", "runtime"),
    [
        pytest.param(at_work(), [LOG], id="main not created"),
        pytest.param(at_work(), [node_requests.Running("main", "m", None), LOG], id="main runs"),
        pytest.param(
            at_work(policy="OnFailure"),
            [node_requests.Running("main", "m", 1, AT), LOG],
            id="restarts",
        ),
        pytest.param(at_work(policy="Always"), [MAIN, LOG], id="Always"),
        pytest.param(
            at_work(initContainers=[make.RESTARTS_ALL]), [MAIN, LOG], id="may restart as a whole"
        ),
        pytest.param(at_work(metadata={"deletionTimestamp": make.AT}), [MAIN, LOG], id="deleted"),
        pytest.param(at_work(make.container("log", make.running())), [MAIN, LOG], id="no mark"),
    ],
)
def test_unfinished_work_is_not_reported(pod, runtime):
    assert exit_reports.see(pod, runtime) is None


def test_an_applied_report_equals_kubelets_later_status():
    pod = at_work()
    believed = exit_reports.believe(pod, exit_reports.see(pod, [MAIN, LOG]))
    main = make.container("main", make.ended(0, "containerd://main"))
    assert believed == sidecar_pods.read(make.pod(main, make.sidecar()))
    moment = reconcile.DecisionMoment(model.BEGIN, lambda: 0.5)
    patch = reconcile.reconcile(believed, model.around(), moment, model.SETTINGS).patch
    later = model.apply(make.pod(main, make.sidecar()), patch.operations)
    assert records.read(sidecar_pods.read(later), "2026-11-21T10:00:00+00:00") is not None


def test_a_report_survives_a_round_trip():
    claim = exit_reports.see(at_work(), [MAIN, LOG])
    assert exit_reports.read(exit_reports.write({"team/train-0": claim})) == {
        "team/train-0": claim
    }


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "7",
        '{"a": 1}',
        '{"a": {"uid": "u"}}',
        '{"a": {"uid": "u", "mains": {"m": {"id": "i", "code": 0, "at": "2026-11-21T10:00:00"}}}}',
        '{"a": {"uid": "u", "mains": {"m": {"id": "i", "code": "x", "at": "now"}}}}',
        "[" * 100_000,
    ],
)
def test_a_malformed_annotation_is_empty(text):
    assert exit_reports.read(text) == {}


def claimed(uid="uid-1", identity="containerd://main"):
    at = datetime.datetime.fromisoformat(make.AT)
    return exit_reports.ExitReport(uid, {"main": exit_reports.End(identity, 0, at)})


@pytest.mark.row(14)
@pytest.mark.row(15)
@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(None, id="none"),
        pytest.param(claimed(uid="uid-2"), id="another pod of its name"),
        pytest.param(claimed(identity="containerd://before"), id="started again since"),
    ],
)
def test_a_report_on_another_pod_or_container_is_ignored(claim):
    pod = at_work()
    assert exit_reports.believe(pod, claim) is pod


def test_a_report_on_a_container_without_status_is_ignored():
    pod = sidecar_pods.read(make.pod(make.container("main", make.waiting()), make.sidecar()))
    assert exit_reports.believe(pod, claimed()) is pod


def test_a_report_is_news_until_kubelet_reports_the_same():
    assert exit_reports.is_news(at_work())
    done = sidecar_pods.read(make.pod(make.container("main", make.ended(0)), make.sidecar()))
    assert not exit_reports.is_news(done)
    begun = at_work(metadata={"annotations": {"pyvgpu.io/sidecar-stop": "{}"}})
    assert not exit_reports.is_news(begun)
