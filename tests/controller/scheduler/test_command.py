"""`pyvgpu scheduler` as a process with a small API server, called as kube-scheduler does."""

import base64
import contextlib
import http.client
import json
import ssl
from pathlib import Path

import programs
import pytest
import scheduling_api as make
import served
import small_api
import waiting

from pyvgpu.controller.certs import certificates, serving_certificate
from pyvgpu.controller.scheduler.shell import leader_label
from pyvgpu.kube import leases

pytestmark = pytest.mark.slow

PLACE = serving_certificate.ServerObjects("pyvgpu", "pyvgpu-scheduler")
KEY_PLACE = serving_certificate.ServerObjects("pyvgpu-agent", "pyvgpu-placement")
FOLDER = "/api/v1/namespaces/pyvgpu/pods"


class Scheduler(served.Program):
    """The process, and a client in the role of kube-scheduler."""

    def __init__(self, api, connection, folder, name, *options, **environment):
        self.api, self.name = api, name
        api.put(f"{FOLDER}/{name}", {"metadata": {"name": name, "labels": {}}})
        more = ("--pod", name, *options)
        super().__init__("scheduler", connection, folder, *more, **environment)

    @property
    def leads(self):
        return leader_label.LABEL in self.api.read(f"{FOLDER}/{self.name}")["metadata"]["labels"]

    def until_leading(self):
        self.until_ready()
        waiting.wait_until(lambda: self.leads)
        return self

    def secret(self, name):
        return base64.b64decode(self.api.read(PLACE.secret)["data"][name])

    def trust(self):
        """Return kube-scheduler's TLS context: the CA bundle and its client certificate."""
        trust = ssl.create_default_context(cadata=self.secret("ca.crt").decode())
        file = self.folder / "client.pem"
        file.write_bytes(self.secret("client.key") + self.secret("client.crt"))
        trust.load_cert_chain(file)
        return trust

    def post(self, verb, body, trust=None):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with self.connected(PLACE.host, trust or self.trust()) as client:
            client.request("POST", f"/scheduler/{verb}", content, served.JSON)
            answer = client.getresponse()
            return answer.status, answer.read()

    def ask(self, verb, **body):
        status, content = self.post(verb, body)
        assert status == 200, content
        return json.loads(content)

    def schedule(self, name, *nodes):
        """Schedule like kube-scheduler; return the error of bind, or why no node fits."""
        pod = self.api.read(make.path(name))
        found = self.ask("filter", Pod=pod, NodeNames=list(nodes), Nodes=None)
        if not found["NodeNames"]:
            return found["FailedAndUnresolvableNodes"]
        best = found["NodeNames"][0]
        if len(found["NodeNames"]) > 1:
            scores = self.ask("prioritize", Pod=pod, NodeNames=found["NodeNames"])
            best = max(scores, key=lambda score: score["Score"])["Host"]
        return self.bind(name, best)

    def bind(self, name, node):
        meta = self.api.read(make.path(name))["metadata"]
        return self.ask("bind", PodName=name, PodNamespace="n", PodUID=meta["uid"], Node=node)[
            "Error"
        ]


@contextlib.contextmanager
def before(made, folder):
    """Yield a function that starts schedulers with an API server of two nodes; end them later."""
    api, connection = made
    data = {"key": base64.b64encode(make.KEY).decode()}
    api.put(KEY_PLACE.secret, {"metadata": {"name": KEY_PLACE.name}, "data": data})
    for name in ("node-1", "node-2"):
        api.put(f"/api/v1/nodes/{name}", make.node(name))
    begun = []

    def begin(name="one", *options, **environment):
        begun.append(Scheduler(api, connection, folder, name, *options, **environment))
        return begun[-1]

    try:
        yield begin
    finally:
        for scheduler in begun:
            scheduler.close()


@pytest.fixture
def start(cluster, tmp_path):
    with before(cluster, tmp_path) as begin:
        yield begin


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """A leading scheduler, shared by tests that leave no traces."""
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client")
    with (
        small_api.running(make.SchedulingApi()) as made,
        before(made, tmp_path_factory.mktemp("scheduler")) as begin,
    ):
        yield begin().until_leading()


def create(api, *names, **more):
    for name in names:
        api.put(make.path(name), make.pod(name, **more))


def test_pods_are_filtered_scored_bound_and_counted(cluster, start):
    api, _ = cluster
    one = start().until_ready().until_leading()
    create(api, *"abcdefghi")
    assert [one.schedule(name, "node-1", "node-2") for name in "abcdefgh"] == [""] * 8
    assert one.schedule("i", "node-1", "node-2") == {
        name: one.schedule("i", name)[name] for name in ("node-1", "node-2")
    }
    used = {}
    for name in "abcdefgh":
        for share in api.choice(name).containers["main"]:
            used[share.uuid] = used.get(share.uuid, 0) + share.vcore
    assert used == {f"GPU-node-{n}-{at}": 100 for n in (1, 2) for at in (0, 1)}
    one.until_it_counts('answers_total{path="/scheduler/bind",result="bound"} 8.0')
    one.until_it_counts("pyvgpu_scheduler_pods 9.0")
    code, said = one.end()
    assert (code, "Traceback" in said) == (0, False), said
    assert not one.leads
    assert api.read(leases.path("pyvgpu", "pyvgpu-scheduler"))["spec"]["holderIdentity"] == ""


def test_only_the_leader_answers_until_the_other_replica_takes_over(cluster, start):
    api, _ = cluster
    one = start("one").until_ready().until_leading()
    two = start("two").until_ready()  # ready, but not leading
    create(api, "a", "b")
    assert one.schedule("a", "node-1") == ""
    status, said = two.post("filter", {"Pod": make.pod("b"), "NodeNames": ["node-1"]})
    assert (status, said) == (503, b"another replica leads, or none yet\n")
    assert one.end()[0] == 0
    two.until_leading()
    assert two.schedule("b", "node-1") == ""
    uuids = [api.choice(name).containers["main"][0].uuid for name in "ab"]
    assert uuids[0] == uuids[1] == "GPU-node-1-0"  # binpack: it knows what the first replica bound


def test_after_a_kill_the_next_leader_knows_what_is_bound(cluster, start):
    api, _ = cluster
    one = start("one").until_ready().until_leading()
    create(api, *"abcde")
    for name in "abcd":
        assert one.schedule(name, "node-1") == ""
    one.process.kill()
    one.process.wait()
    spec = api.read(leases.path("pyvgpu", "pyvgpu-scheduler"))
    spec["spec"]["leaseDurationSeconds"] = 1  # so that the test need not wait for the full lease
    api.put(leases.path("pyvgpu", "pyvgpu-scheduler"), spec)
    two = start("two").until_ready().until_leading()
    assert not one.leads
    assert "node-1" in two.schedule("e", "node-1")
    assert two.schedule("e", "node-2") == ""


def wrong_by(seconds):
    """Return the environment of a program whose clock is off by *seconds*."""
    source = Path(__file__).with_name("skewed.c")
    library = programs.build("skewed.so", (source,), "-shared", "-fPIC")
    return {"LD_PRELOAD": library, "SKEW_SECONDS": str(seconds)}


def test_skewed_clocks_change_neither_the_leader_nor_the_validity_of_choices(cluster, start):
    api, _ = cluster
    slow = start("slow", **wrong_by(-1800)).until_leading()
    fast = start("fast", **wrong_by(1800)).until_ready()
    lease = leases.path("pyvgpu", "pyvgpu-scheduler")

    def polled():
        return api.asked.count(("GET", lease))

    before = polled()
    waiting.wait_until(lambda: polled() >= before + 2)  # it has seen a lease renewed an hour ago
    create(api, "a", "b")
    assert slow.schedule("a", "node-1") == ""
    assert slow.end()[0] == 0
    fast.until_leading()
    assert fast.schedule("b", "node-1") == ""
    uuids = [api.choice(name).containers["main"][0].uuid for name in "ab"]
    assert uuids[0] == uuids[1]


def test_a_bind_without_a_filter_before_it_reads_the_pod(cluster, start):
    api, _ = cluster
    one = start().until_leading()
    create(api, "a", "b")
    api.put(make.path("plain"), make.pod("plain", 0, 0))
    assert one.bind("b", "node-2") == ""  # out of order
    assert one.bind("a", "node-1") == ""
    assert one.bind("plain", "node-1") == ""
    assert api.choice("b").node == "node-2"


def test_a_pod_deleted_between_filter_and_bind_holds_nothing(cluster, start):
    api, _ = cluster
    one = start().until_leading()
    create(api, "a", "b", vcore=100)
    pod = api.read(make.path("a"))
    one.ask("filter", Pod=pod, NodeNames=["node-1"])
    api.delete(make.path("a"))
    asked = {"PodName": "a", "PodNamespace": "n", "PodUID": "uid-a", "Node": "node-1"}
    assert "n/a" in one.ask("bind", **asked)["Error"]
    create(api, "c", vcore=100)
    assert one.schedule("b", "node-1") == one.schedule("c", "node-1") == ""


DAMAGED = {
    "not JSON": "{",
    "of another version": '{"v": 2}',
    "no object": "[]",
    "empty": "",
    "wrong types": '{"v": 1, "memory_unit": "x", "devices": 7, "grants": {}}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_nodes_with_invalid_annotations_get_no_pods_and_do_no_harm(answering, text):
    api, one = answering.api, answering
    broken = make.node("broken")
    broken["metadata"]["annotations"]["pyvgpu.io/node-devices"] = text
    api.put("/api/v1/nodes/broken", broken)
    create(api, "a")
    asked = ["broken", "never-heard-of", "node-1"]
    found = one.ask("filter", Pod=api.read(make.path("a")), NodeNames=asked[:2])
    assert found["NodeNames"] == []
    assert set(found["FailedAndUnresolvableNodes"]) == {"broken", "never-heard-of"}
    found = one.ask("filter", Pod=api.read(make.path("a")), NodeNames=asked)
    assert found["NodeNames"] == ["node-1"]
    assert one.bind("a", "broken") != ""
    assert one.bind("a", "node-1") == ""
    api.delete(make.path("a"))


@pytest.mark.parametrize(
    ("verb", "body", "code"),
    [
        ("filter", b"garbage", 400),
        ("filter", b"null", 400),
        ("filter", b'{"Pod": null, "Nodes": null, "NodeNames": null}', 400),
        ("filter", b"[" * 100_000, 400),
        ("prioritize", b"{}", 400),
        ("bind", b"{}", 400),
        ("bind", b'{"PodName": "../x", "PodNamespace": "n", "PodUID": "u", "Node": "x"}', 400),
        ("preempt", b'{"Pod": 7}', 400),
        ("nothing", b"{}", 404),
    ],
)
def test_an_invalid_request_is_refused_and_the_next_one_answered(answering, verb, body, code):
    assert answering.post(verb, body)[0] == code
    pod = make.pod("next")
    assert answering.ask("filter", Pod=pod, NodeNames=["node-2"])["NodeNames"] == ["node-2"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--serve", "8443x"], "--serve '8443x': must be a port"),
        (["--policy", "best"], "--policy 'best': must be binpack, spread or topology"),
        (["--key", "placement"], "--key 'placement': must be a namespace and a name"),
        (
            ["--resync", "0"],
            "--resync '0': must be a whole number of seconds from 1 to 86400, such as 60",
        ),
        (["--any-client", "--client-name", "x"], "--any-client: contradicts"),
        (
            ["--certificate-folder", "/x"],
            "--client-authority FILE must name the CA that issues them",
        ),
        (["--certificate-signer", "x"], "--certificate-signer 'x': must be the name of a signer"),
        (["--certificate-signer", "example/x"], "'example/x': must be the name of a signer: a"),
        (["--certificate-signer", "a.example/X"], "such as kubernetes.io/kubelet-serving"),
        (
            ["--certificate-folder", "/x", "--certificate-signer", "y.example/z", "--any-client"],
            "must not both be given",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(start, options, why):
    code, said = start("one", *options).refused()
    assert code == 64
    assert why in said


def test_an_invalid_client_authority_is_refused(start, tmp_path):
    (tmp_path / "ca.crt").write_text("nothing")
    code, said = start("one", "--client-authority", tmp_path / "ca.crt").refused()
    assert code == 65
    assert "must be certificates in PEM" in said


def anonymous(one):
    """Return the TLS context of a client without a certificate."""
    return ssl.create_default_context(cadata=one.secret("ca.crt").decode())


REJECTED = (ConnectionError, ssl.SSLError, http.client.HTTPException)


def test_a_client_without_a_certificate_is_rejected(answering):
    with pytest.raises(REJECTED):
        answering.post("filter", {}, anonymous(answering))


def test_a_client_with_a_server_certificate_is_rejected(answering):
    trust = anonymous(answering)
    file = answering.folder / "server.pem"
    file.write_bytes(answering.secret("tls.key") + answering.secret("tls.crt"))
    trust.load_cert_chain(file)
    with pytest.raises(REJECTED):
        answering.post("filter", {}, trust)


def test_only_clients_with_the_given_name_are_accepted(start):
    one = start("one", "--client-name", "another").until_ready()
    with pytest.raises(REJECTED):
        one.post("filter", {})
    one.end()
    two = start("two", "--client-name", "kube-scheduler").until_leading()
    assert two.post("filter", {})[0] == 400


def test_an_administrators_own_client_authority_is_accepted(start, tmp_path):
    one = start("one").until_ready()
    theirs = tmp_path / "their.crt"
    theirs.write_bytes(one.secret("ca.crt"))
    one.end()
    two = start("two", "--client-authority", theirs).until_leading()
    assert two.post("filter", {})[0] == 400
    with pytest.raises(REJECTED):
        two.post("filter", {}, anonymous(two))


def test_an_external_issuer_may_make_the_certificates_of_server_and_clients(start, tmp_path):
    wanted = certificates.CertificateSpec((PLACE.host,), lasting=True)
    made = certificates.make(wanted, serving_certificate.utc())
    certificate, key = certificates.client(made, "theirs", serving_certificate.utc())
    for name, text in (
        *(("tls.crt", made.certificate), ("tls.key", made.key)),
        *(("ca.crt", made.authorities), ("client.pem", key + certificate)),
    ):
        (tmp_path / name).write_text(text)
    authority = ("--client-authority", tmp_path / "ca.crt", "--client-name", "theirs")
    one = start("one", "--certificate-folder", tmp_path, *authority).until_leading()
    trust = ssl.create_default_context(cadata=made.authorities)
    with pytest.raises(REJECTED):
        one.post("filter", {}, trust)
    trust.load_cert_chain(tmp_path / "client.pem")
    assert one.post("filter", {}, trust)[0] == 400
    assert PLACE.secret not in one.api._objects  # it is not needed


def test_any_client_is_accepted_with_the_option(start):
    one = start("one", "--any-client").until_leading()
    assert one.post("filter", {}, anonymous(one))[0] == 400
