"""The leader's label is on one pod, and that is the one that leads."""

import pytest

from pyvgpu.controller.scheduler.shell import leading
from pyvgpu.kube import apiserver

FOLDER = "/api/v1/namespaces/pyvgpu/pods"


def put(api, name, **labels):
    api.put(f"{FOLDER}/{name}", {"metadata": {"name": name, "labels": {"app": "s", **labels}}})


def labels(api, name):
    return api.read(f"{FOLDER}/{name}")["metadata"]["labels"]


def test_who_leads_has_the_label_and_nobody_else(cluster):
    api, connection = cluster
    put(api, "old", **{leading.LABEL: leading.LEADS})
    put(api, "new")
    own = leading.OwnPod(connection, "pyvgpu", "new")
    own.lead()
    assert labels(api, "old") == {"app": "s"}
    assert labels(api, "new") == {"app": "s", leading.LABEL: leading.LEADS}
    own.follow()
    assert labels(api, "new") == {"app": "s"}


def test_an_old_leader_that_goes_meanwhile_is_no_trouble(cluster):
    api, connection = cluster
    put(api, "old", **{leading.LABEL: leading.LEADS})
    put(api, "new")
    api.refusing["PATCH"] = [404]
    leading.OwnPod(connection, "pyvgpu", "new").lead()
    assert labels(api, "new")[leading.LABEL] == leading.LEADS


def test_who_cannot_label_itself_does_not_lead(cluster):
    _, connection = cluster
    with pytest.raises(apiserver.ServerError):
        leading.OwnPod(connection, "pyvgpu", "gone").lead()


def test_who_is_in_no_pod_writes_nothing(cluster):
    api, connection = cluster
    own = leading.OwnPod(connection, "pyvgpu", "")
    own.lead()
    own.annotate({"a": "b"})
    own.follow()
    assert not api.asked
