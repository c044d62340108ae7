"""`pyvgpu webhook` as a process against a fake API server."""

import base64
import json
import ssl

import pod_objects as make
import pytest
import served

from pyvgpu.controller.certs import serving_certificate

pytestmark = pytest.mark.slow

PLACE = serving_certificate.ServerObjects("pyvgpu", "pyvgpu-webhook")


class Webhook(served.Program):
    """The process, called as the API server would."""

    def __init__(self, api, connection, folder, *options):
        self._api = api
        super().__init__("webhook", connection, folder, *options)

    def ask(self, pod):
        hook = self._api.read(PLACE.mutating)["webhooks"][0]
        authorities = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
        trust = ssl.create_default_context(cadata=authorities)
        body = json.dumps(make.asked(pod, namespace="team-a"))
        with self.connected(PLACE.host, trust) as client:
            client.request("POST", "/sidecars?timeout=5s", body, served.JSON)
            response = json.loads(client.getresponse().read())["response"]
        return json.loads(base64.b64decode(response.get("patch", "W10=")))


@pytest.fixture
def start(small, tmp_path):
    api, connection = small
    api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    hooks = [{"name": "sidecars.pyvgpu.io", "clientConfig": {}}]
    api.put(PLACE.mutating, {"metadata": {"uid": "m"}, "webhooks": hooks})
    made = []

    def begin(*options):
        made.append(Webhook(api, connection, tmp_path, *options))
        return made[-1]

    yield begin
    for webhook in made:
        webhook.close()


def pod():
    made = make.pod(make.container("main"), make.sidecar(command=["/opt/log"]))
    made["metadata"] = {}
    return made


def test_webhook_answers_counts_and_terminates(start):
    webhook = start().until_ready()
    assert [operation["path"] for operation in webhook.ask(pod())][-1].endswith(
        "pyvgpu.io~1sidecars"
    )
    webhook.until_it_counts('pyvgpu_webhook_reviews_total{path="/sidecars",result="changed"} 1.0')
    code, said = webhook.end()
    assert code == 0
    assert "Traceback" not in said


def test_without_a_certificate_it_is_alive_and_not_ready(small, start):
    small[0].delete(PLACE.secret)
    small[0].refusing["POST"] = [403] * 100
    webhook = start()
    small[0].wait_for("GET", PLACE.secret)
    assert webhook.page("/healthz")[0] == 200
    code, said = webhook.page("/readyz")  # with the reason after the first failed attempt
    assert (code, said.strip().partition(": ")[0]) == (503, "there is no certificate yet")
    small[0].put(PLACE.secret, {"metadata": {"name": PLACE.name}})
    assert webhook.until_ready().ask(pod())


def test_startup_logs_the_namespaces_to_configure_for_policies(start, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        "policies: [{namespace: 'train-?', containers: [log]}, {containers: [istio-proxy]}]"
    )
    code, said = start(f"--config={settings}").until_ready().end()
    assert code == 0
    assert "--config has policies for namespaces *, train-?: " in said
    assert "sidecars.pyvgpu.io" in said


def test_startup_without_policies_logs_no_namespaces(start):
    _, said = start().until_ready().end()
    assert "policies" not in said


@pytest.mark.parametrize(("release", "native"), [("v1.36.3", True), ("v1.28.0", False)])
def test_sidecars_become_native_if_every_kubelet_supports_it(small, start, release, native):
    node = {"metadata": {"name": "n"}, "status": {"nodeInfo": {"kubeletVersion": release}}}
    small[0].put("/api/v1/nodes/n", node)
    webhook = start("--convert-to-native", "team-*").until_ready()
    small[0].wait_for("WATCH", "/api/v1/nodes")
    paths = [operation["path"] for operation in webhook.ask(pod())]
    assert ("/spec/initContainers" in paths) is native


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--serve", "8443x"], "--serve '8443x': must be a port"),
        (["--virtual-provider", "other"], "--virtual-provider"),
    ],
)
def test_invalid_options_are_refused(start, options, why):
    code, said = start(*options).refused()
    assert code == 64
    assert why in said
