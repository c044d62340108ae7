"""`pyvgpu claim-controller` as a process against a fake API server."""

import signal
import subprocess

import pytest
import runner
import served
import small_api
import waiting

from pyvgpu.controller.claims import templates
from pyvgpu.kube import leases

pytestmark = pytest.mark.slow

OLD = {"pyvgpu.io/used": "2020-01-01T00:00:00Z"}


def test_controller_collects_while_it_holds_the_lease_and_releases_it_on_exit(small, tmp_path):
    api, connection = small
    name = "pyvgpu-share-1"
    metadata = {"namespace": "team", "name": name, "uid": "u", "annotations": OLD}
    api.put(templates.path("team", name), {"metadata": metadata})
    config, port = tmp_path / "kubeconfig", served.free_port()
    small_api.write_kubeconfig(config, connection)
    command = [runner.PYVGPU, "claim-controller", "--kubeconfig", config]
    options = ["--namespace", "pyvgpu", "--listen", str(port)]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        waiting.wait_until(lambda: not api.under(templates.path("team")))
        counted = "pyvgpu_claim_templates_collected_total 1.0"
        waiting.wait_until(lambda: counted in served.page(f"127.0.0.1:{port}", "/metrics")[1])
        assert "pyvgpu_claim_acts 1.0" in served.page(f"127.0.0.1:{port}", "/metrics")[1]
        assert served.page(f"127.0.0.1:{port}", "/healthz")[0] == 200
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=served.SECONDS)
    assert process.returncode == 0
    assert "Traceback" not in said
    assert api.read(leases.path("pyvgpu", leases.CLAIMS))["spec"]["holderIdentity"] == ""
