"""The leader label is on exactly one pod: the leader's."""

import pytest

from pyvgpu.controller.scheduler.shell import leader_label
from pyvgpu.kube import apiserver

FOLDER = "/api/v1/namespaces/pyvgpu/pods"


def put(api, name, **labels):
    api.put(f"{FOLDER}/{name}", {"metadata": {"name": name, "labels": {"app": "s", **labels}}})


def labels(api, name):
    return api.read(f"{FOLDER}/{name}")["metadata"]["labels"]


def test_only_the_leaders_pod_has_the_label(cluster):
    api, connection = cluster
    put(api, "old", **{leader_label.LABEL: leader_label.LEADS})
    put(api, "new")
    own = leader_label.OwnPod(connection, "pyvgpu", "new")
    own.lead()
    assert labels(api, "old") == {"app": "s"}
    assert labels(api, "new") == {"app": "s", leader_label.LABEL: leader_label.LEADS}
    own.follow()
    assert labels(api, "new") == {"app": "s"}


def test_an_old_leaders_pod_may_vanish_meanwhile(cluster):
    api, connection = cluster
    put(api, "old", **{leader_label.LABEL: leader_label.LEADS})
    put(api, "new")
    api.refusing["PATCH"] = [404]
    leader_label.OwnPod(connection, "pyvgpu", "new").lead()
    assert labels(api, "new")[leader_label.LABEL] == leader_label.LEADS


def test_a_replica_that_cannot_label_its_pod_does_not_lead(cluster):
    _, connection = cluster
    with pytest.raises(apiserver.ServerError):
        leader_label.OwnPod(connection, "pyvgpu", "gone").lead()


def test_outside_a_pod_nothing_is_written(cluster):
    api, connection = cluster
    own = leader_label.OwnPod(connection, "pyvgpu", "")
    own.lead()
    own.annotate({"a": "b"})
    own.follow()
    assert not api.asked
