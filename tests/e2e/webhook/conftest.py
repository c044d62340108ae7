"""The webhook before the cluster's API server, for all tests of this folder."""

import pytest
import rig
import webhooks

from pyvgpu.kube import apiserver


@pytest.fixture(scope="session")
def running(tmp_path_factory, _cluster):
    made = webhooks.Webhook(tmp_path_factory.mktemp("webhook"))
    with webhooks.installed("webhook/", setting="webhook.environmentPolicy=true"):
        made.start(*made.options)
        try:
            yield made
        finally:
            code = made.stop()
            said = made.log.read_text()
            print(said)
    assert code == 0
    assert "Traceback" not in said
    assert " 403 " not in said  # its rights are those that are shipped


@pytest.fixture
def webhook(running):
    """The webhook, as it should be before and after each test."""
    return running


@pytest.fixture
def tenant(space, webhook, tmp_path):
    """Return the namespace for somebody who may do anything in it, and nothing elsewhere."""
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.name}/rolebindings"
    space.server.call("POST", path, body=rig.anything("everything", space.name, "default"))
    config = tmp_path / "tenant"
    rig.write_kubeconfig(config, space.name, "default")
    return rig.Space(apiserver.connect(str(config)), space.name)
