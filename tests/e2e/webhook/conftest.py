"""Fixtures: the webhook as a process for the cluster's API server, shared by all tests here."""

import charted
import pytest
import rig
import webhooks

from pyvgpu.kube import apiserver


@pytest.fixture(scope="session")
def running(tmp_path_factory, _cluster):
    made = webhooks.Webhook(tmp_path_factory.mktemp("webhook"))
    settings = f"{charted.SIDECARS},webhook.environmentPolicy=true"
    with webhooks.installed("webhook/", setting=settings):
        made.start(*made.options)
        try:
            yield made
        finally:
            code = made.stop()
            said = made.log.read_text()
            print(said)
    assert code == 0
    assert "Traceback" not in said
    assert " 403 " not in said  # the shipped RBAC rules suffice


@pytest.fixture
def webhook(running):
    """The webhook with its usual options, running before and after each test."""
    return running


@pytest.fixture
def tenant(space, webhook, tmp_path):
    """Return the namespace with a connection that has admin rights in it and none elsewhere."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.name}/rolebindings"
    space.server.call("POST", path, body=rig.anything("everything", space.name, "default"))
    config = tmp_path / "tenant"
    rig.write_kubeconfig(config, space.name, "default")
    return rig.Space(apiserver.connect(str(config)), space.name)
