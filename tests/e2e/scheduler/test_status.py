"""The status page with a real API server: access control, content, and its own RBAC rules."""

import contextlib
import json
import subprocess

import extenders
import pytest
import rig
import runner
import served
import waiting

from pyvgpu.cli import status_page
from pyvgpu.kube import apiserver, objects

pytestmark = pytest.mark.e2e
RIGHTS = "status/rights.yaml"
VIEWERS = "pyvgpu-status-viewer"


@pytest.fixture
def page(space, tmp_path):
    """Run the page with only its account's RBAC rules; return a function that requests it."""
    ours = rig.as_admin("pyvgpu")
    rig.apply(RIGHTS)
    secret = {"metadata": {"name": status_page.NAME, "namespace": "pyvgpu"}}
    with contextlib.suppress(apiserver.ServerError):  # it exists
        ours.create("secrets", secret)
    ours.until("serviceaccounts", "status-page", lambda _: True)
    config, log, port = tmp_path / "kubeconfig", tmp_path / "log", served.free_port()
    rig.write_kubeconfig(config, "pyvgpu", "status-page")
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                *(runner.PYVGPU, "status-page", f"--kubeconfig={config}", "--namespace=pyvgpu"),
                *(f"--serve=127.0.0.1:{port}", f"--agent-namespace={space.name}"),
            ],
            stdout=said,
            stderr=said,
        )

    def ask(token="", query=""):
        """Return the status code and the document for a request with *token*."""
        command = ["curl", "--silent", "--insecure", "--write-out", "\n%{http_code}"]
        if token:
            command += ["--header", f"Authorization: Bearer {token}"]
        done = subprocess.run(
            [*command, f"https://127.0.0.1:{port}/status.json{query}"],
            capture_output=True,
            text=True,
        )
        text, _, code = done.stdout.rpartition("\n")
        return int(code), json.loads(text) if text else {}

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(rig.SECONDS)
        rig.delete(RIGHTS)
    assert " 403 " not in log.read_text()
    assert "Traceback" not in log.read_text()


def token_of(space, name):
    space.create("serviceaccounts", {"metadata": {"name": name}})
    where = f"{space.path('serviceaccounts', name)}/token"
    return space.server.call("POST", where, body={"spec": {}})["status"]["token"]


@contextlib.contextmanager
def seeing(space, name):
    """Bind an account to the viewer role during the block."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    group = "rbac.authorization.k8s.io"
    body = {
        "metadata": {"name": f"{space.name}-{name}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": VIEWERS},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": space.name}],
    }
    space.server.call("POST", path, body=body)
    try:
        yield
    finally:
        space.server.call("DELETE", f"{path}/{space.name}-{name}")


def event(space):
    now = objects.now()
    return {
        "metadata": {"name": "event.1"},
        "involvedObject": {"kind": "Pod", "namespace": space.name, "name": "p"},
        "reason": "VGPUWaits",
        "message": "no device for it",
        "type": "Warning",
        "source": {"component": "pyvgpu-scheduler"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def test_api_server_authorizes_viewers_and_provides_the_content(space, page):
    viewer, stranger = (token_of(space, name) for name in ("viewer", "stranger"))
    space.create("events", event(space))
    with extenders.fake_nodes("shown-1", "shown-2"), seeing(space, "viewer"):
        space.create(
            "pods", extenders.pod("p", 100, 64, nodeSelector={"kubernetes.io/hostname": "none"})
        )

        def shows():
            code, found = page(viewer)
            return (
                code == 200
                and {"shown-1", "shown-2"} <= {row["name"] for row in found["nodes"]["rows"]}
                and any(
                    row["pod"] == f"{space.name}/p" and row["why"]
                    for row in found["waiting"]["rows"]
                )
                and any(entry["object"] == f"{space.name}/p" for entry in found["events"])
            )

        waiting.wait_until(shows, seconds=60, found=lambda: page(viewer))
        assert page()[0] == page("unknown")[0] == 401
        code, said = page(stranger)
        assert code == 403
        assert said["error"].startswith(f"system:serviceaccount:{space.name}:stranger may not get")
        code, found = page(viewer, "?node=shown-1")
        assert (code, found["kind"], found["devices"][0]["used"]) == (200, "node", None)
        assert page(viewer, "?search=shown-2")[1]["nodes"]["count"] == 1
