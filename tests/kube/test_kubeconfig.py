"""Servers and credentials of kubeconfigs, in all forms that kubectl accepts."""

import base64
import contextlib
import datetime
import http.server
import json
import socket
import ssl
import sys
import threading

import http_listener
import pytest
import yaml

from pyvgpu import errors
from pyvgpu.controller.certs import certificates
from pyvgpu.kube import apiserver


class Listening:
    """A server that records requests and their tokens."""

    def __init__(self, context=None):
        self.asked = []  # (path, Authorization)
        self.expected = None  # the only token that is accepted
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                token = self.headers.get("Authorization")
                outer.asked.append((self.path, token))
                good = outer.expected in (None, token)
                self.send_response(200 if good else 401)
                self.end_headers()
                self.wfile.write(b'{"gitVersion": "v1"}')

            def log_message(self, *_):
                pass

        self.listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.listener.socket = context.wrap_socket(self.listener.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.listener.server_port}"


@contextlib.contextmanager
def serving(context=None):
    made = Listening(context)
    with http_listener.serving(made.listener):
        yield made


@pytest.fixture
def server():
    with serving() as made:
        yield made


@pytest.fixture
def connect(tmp_path):
    """Connect by a kubeconfig with this cluster and this user."""
    with contextlib.ExitStack() as stack:

        def make(cluster, user, form=json.dumps):
            file = tmp_path / "kubeconfig"
            file.write_text(form(config(cluster, user)))
            made = apiserver.connect(str(file), retry_seconds=0.0)
            stack.callback(made.close)
            return made

        yield make


def config(cluster, user):
    return {
        "clusters": [
            {"name": "other", "cluster": {"server": "https://other"}},
            {"name": "c", "cluster": cluster},
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def malformed(**sections):
    """Return a kubeconfig with these sections in place of its own."""
    return json.dumps(config({"server": "https://h"}, {"token": "t"}) | sections)


def b64(text):
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("form", [json.dumps, yaml.safe_dump], ids=["JSON", "YAML"])
def test_the_current_context_is_used(server, connect, form):
    connect({"server": server.url}, {"token": "secret"}, form).call("GET", "/version")
    assert server.asked == [("/version", "Bearer secret")]


def test_a_refused_token_is_read_again_from_its_file(server, connect, tmp_path):
    (tmp_path / "token").write_text("first\n")
    connection = connect({"server": server.url}, {"tokenFile": "token"})
    connection.call("GET", "/version")
    (tmp_path / "token").write_text("second\n")
    server.expected = "Bearer second"
    connection.call("GET", "/version")
    assert [token for _, token in server.asked] == [
        "Bearer first",
        "Bearer first",
        "Bearer second",
    ]


EXEC = """\
import json, pathlib
count = pathlib.Path({count!r})
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
print(json.dumps({{
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {{"token": f"token-{{number}}"}},
}}))
"""


def test_an_exec_plugin_is_run_again_when_its_token_is_refused(server, connect, tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(EXEC.format(count=str(tmp_path / "count")))
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(plugin)],
            "interactiveMode": "Never",
        }
    }
    connection = connect({"server": server.url}, user)
    connection.call("GET", "/version")
    server.expected = "Bearer token-2"
    connection.call("GET", "/version")
    assert server.asked[-1] == ("/version", "Bearer token-2")
    assert (tmp_path / "count").read_text() == "2"


def test_a_configured_proxy_is_used(server, connect):
    cluster = {"server": "http://api.invalid:6443", "proxy-url": server.url}
    connect(cluster, {"token": "secret"}).call("GET", "/version")
    assert server.asked == [("http://api.invalid:6443/version", "Bearer secret")]


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"server": "http://127.0.0.1:PORT"}, "http://127.0.0.1:PORT: connection refused; check"),
        ({"server": "http://h.invalid"}, "http://h.invalid: (name or|temporary failure)"),
        (
            {"server": "http://h.invalid", "proxy-url": "http://me:secret@127.0.0.1:PORT"},
            "through the proxy http://127.0.0.1:PORT: connection refused; check that it runs",
        ),
    ],
)
def test_a_server_without_response_is_named_with_the_reason(connect, cluster, said):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = str(closed.getsockname()[1])
        filled = {key: text.replace("PORT", port) for key, text in cluster.items()}
        with pytest.raises(apiserver.ServerError, match=said.replace("PORT", port)) as caught:
            connect(filled, {"token": "secret"}).call("GET", "/version")
    said = str(caught.value)
    assert said.startswith("GET /version: no response from the API server")
    assert "Errno" not in said
    assert "secret" not in said


def test_a_server_without_tls_is_named_with_the_reason(server, connect):
    cluster = {"server": server.url.replace("http:", "https:")}
    with pytest.raises(apiserver.ServerError, match=r"TLS: [a-z ]+; check that the kubeconfig"):
        connect(cluster, {"token": "secret"}).call("GET", "/version")


def test_a_response_that_breaks_off_is_no_response(connect):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up():
            with listening.accept()[0] as accepted:
                accepted.recv(1 << 16)

        ending = threading.Thread(target=hang_up)
        ending.start()
        connection = connect({"server": f"http://127.0.0.1:{listening.getsockname()[1]}"}, {})
        with pytest.raises(
            apiserver.ServerError, match="Remote end closed connection.*; check that"
        ):
            connection.call("GET", "/version")
        ending.join()


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize(
    ("more", "reached"),
    [
        pytest.param({}, False, id="another name"),
        pytest.param({"tls-server-name": "api.internal"}, True, id="tls-server-name"),
        pytest.param({"insecure-skip-tls-verify": True}, True, id="insecure-skip-tls-verify"),
    ],
)
def test_the_server_name_is_verified_as_configured(connect, tmp_path, more, reached):
    now = datetime.datetime.now(datetime.UTC)
    bundle = certificates.make(certificates.CertificateSpec(("api.internal",)), now)
    pem = tmp_path / "server.pem"
    pem.write_text(bundle.key + bundle.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with serving(context) as server:
        cluster = {"server": server.url, **more}
        if "insecure-skip-tls-verify" not in more:
            cluster["certificate-authority-data"] = b64(bundle.authorities)
        connection = connect(cluster, {"token": "secret"})
        if reached:
            assert connection.call("GET", "/version")["gitVersion"] == "v1"
        else:
            with pytest.raises(
                apiserver.ServerError, match="certificate is not trusted.*authority"
            ):
                connection.call("GET", "/version")
        connection.close()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param("{", "kubeconfig", id="nothing"),
        pytest.param("", ": is empty; must be a kubeconfig, such as", id="empty"),
        pytest.param("[]", ": is a list, not an object; must be a kubeconfig", id="a list"),
        pytest.param("{}", "kubeconfig", id="no clusters"),
        pytest.param('{"current-context": "x"}', "must be a kubeconfig", id="no contexts"),
        pytest.param(malformed(clusters="c"), "clusters is text, not a list", id="text"),
        pytest.param(malformed(users=[1]), "users[0] is not an object with a name", id="number"),
        pytest.param(
            malformed(clusters=[{"name": "c", "cluster": None}]),
            "clusters[0].cluster is null, not an object",
            id="null",
        ),
        pytest.param(
            json.dumps(config({"server": 5}, {"token": "t"})),
            "clusters[1].cluster.server is a number, not text",
            id="a number as server",
        ),
        pytest.param(
            json.dumps(config({"server": "10.0.0.1"}, {"token": "t"})),
            "must be a URL, such as https://10.0.0.1:6443",
            id="no URL",
        ),
        pytest.param(
            json.dumps(
                config({"server": "https://h", "certificate-authority-data": b64("x")}, {})
            ),
            "kubeconfig",
            id="no certificate",
        ),
        pytest.param(
            json.dumps(config({"server": "https://h", "certificate-authority-data": "!"}, {})),
            "kubeconfig",
            id="no base64",
        ),
        pytest.param(
            json.dumps(
                config({"server": "https://h"}, {"client-certificate": "no", "client-key": "no"})
            ),
            "no",
            id="no such file",
        ),
    ],
)
def test_an_invalid_kubeconfig_is_named_in_the_error(tmp_path, document, words):
    file = tmp_path / "kubeconfig"
    file.write_text(document)
    with pytest.raises(errors.DataError) as caught:
        apiserver.connect(str(file))
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert "such as" in str(caught.value)
    assert "Error(" not in str(caught.value)


def test_a_missing_kubeconfig_is_named_in_the_error(tmp_path):
    with pytest.raises(errors.DataError, match="none"):
        apiserver.connect(str(tmp_path / "none"))


def test_an_unknown_context_is_answered_with_those_of_the_file(tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config({"server": "https://h"}, {"token": "t"})))
    with pytest.raises(errors.UsageError, match="--context 'y': is not in .*contexts: x$"):
        apiserver.connect(str(file), context="y")


def test_error_of_a_pod_without_its_service_account_names_the_mount(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(errors.DataError, match="must be mounted, as by automountServiceAccount"):
        apiserver.connect()


def test_empty_paths_of_kubeconfig_are_ignored(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", f":{tmp_path}/none:")
    with pytest.raises(errors.DataError, match="none:: no such file; --kubeconfig FILE names"):
        apiserver.connect()
