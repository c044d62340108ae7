"""`pyvgpu webhook` as a process before a small API server."""

import base64
import http.client
import json
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request

import pod_objects as make
import pytest
import runner
import small_api
import waiting

from pyvgpu.controller.webhook import identity, review

PLACE = identity.Place("pyvgpu", "pyvgpu-webhook")
SECONDS = 60


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Webhook:
    """The process, where it answers, and what the API server knows of it."""

    def __init__(self, api, connection, folder, *options):
        self._api = api
        self.port, self.health = free_port(), free_port()
        config = folder / "kubeconfig"
        small_api.write_kubeconfig(config, connection)
        command = [runner.PYVGPU, "webhook", "--kubeconfig", config, "--namespace", "pyvgpu"]
        where = ["--serve", f"127.0.0.1:{self.port}", "--listen", str(self.health)]
        self.process = subprocess.Popen([*command, *where, *options], stderr=subprocess.PIPE)

    def page(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read().decode()
        except urllib.error.URLError:
            return 0, ""

    def until_ready(self):
        waiting.wait_until(lambda: self.page("/readyz")[0] == 200)
        return self

    def ask(self, pod):
        hook = self._api.read(PLACE.configuration)["webhooks"][0]
        authorities = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
        trust = ssl.create_default_context(cadata=authorities)
        client = http.client.HTTPConnection(PLACE.host)
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        client.sock = trust.wrap_socket(plain, server_hostname=PLACE.host)
        request = {
            "uid": "u",
            "operation": "CREATE",
            "resource": {"resource": "pods"},
            "namespace": "team-a",
            "object": pod,
        }
        body = {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request}
        headers = {"Content-Type": "application/json"}
        client.request("POST", "/sidecars?timeout=5s", json.dumps(body), headers)
        response = json.loads(client.getresponse().read())["response"]
        client.close()
        return json.loads(base64.b64decode(response.get("patch", "W10=")))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS), self.process.stderr.read().decode()


@pytest.fixture
def start(small, tmp_path):
    api, connection = small
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    hooks = [{"name": "sidecars.pyvgpu.io", "clientConfig": {}}]
    api.put(PLACE.configuration, {"metadata": {"uid": "m"}, "webhooks": hooks})
    made = []

    def begin(*options):
        made.append(Webhook(api, connection, tmp_path, *options))
        return made[-1]

    yield begin
    for it in made:
        it.process.kill()
        it.process.wait()
        it.process.stderr.close()


def pod():
    made = make.pod(make.container("main"), make.sidecar(command=["/opt/log"]))
    made["metadata"] = {}
    return made


def test_it_answers_counts_and_ends(start):
    webhook = start().until_ready()
    assert [it["path"] for it in webhook.ask(pod())][-1].endswith("pyvgpu.io~1sidecars")
    _, figures = webhook.page("/metrics")
    assert 'pyvgpu_webhook_reviews_total{path="/sidecars",result="changed"} 1.0' in figures
    code, said = webhook.end()
    assert code == 0
    assert "Traceback" not in said


def test_before_it_has_a_certificate_it_is_alive_and_not_ready(small, start):
    small[0].delete(PLACE.secret)
    webhook = start()
    small[0].wait_for("GET", PLACE.secret)
    assert webhook.page("/healthz")[0] == 200
    assert webhook.page("/readyz") == (503, "there is no certificate yet\n")
    small[0].put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    assert webhook.until_ready().ask(pod())


@pytest.mark.parametrize(("release", "native"), [("v1.36.3", True), ("v1.28.0", False)])
def test_where_every_kubelet_can_sidecars_become_native(small, start, release, native):
    node = {"metadata": {"name": "n"}, "status": {"nodeInfo": {"kubeletVersion": release}}}
    small[0].put("/api/v1/nodes/n", node)
    webhook = start("--convert-to-native", "team-*").until_ready()
    small[0].wait_for("WATCH", "/api/v1/nodes")
    paths = [it["path"] for it in webhook.ask(pod())]
    assert ("/spec/initContainers" in paths) is native


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--serve", "8443x"], "--serve '8443x': must be a port"),
        (["--virtual-provider", "other"], "--virtual-provider"),
    ],
)
def test_options_that_make_no_sense_are_refused(start, options, why):
    webhook = start(*options)
    assert webhook.process.wait(SECONDS) == 64
    assert why in webhook.process.stderr.read().decode()
