"""preStop hooks and commands, run before the stop signal as kubelet would."""

import http.server
import json

import http_listener
import pytest

pytest.importorskip("prometheus_client", reason="needs prometheus-client")
small_runtime = pytest.importorskip("small_runtime", reason="needs grpcio")

from pyvgpu.controller.sidecar import cri, hooks  # noqa: E402


@pytest.fixture
def page():
    """Serve any HTTP request; give the port and the requests received."""
    asked = []

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["X-Why"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            """Log nothing."""

    served = http.server.HTTPServer(("127.0.0.1", 0), Page)
    with http_listener.serving(served):
        yield served.server_port, asked


@pytest.fixture
def runtime(tmp_path):
    made = small_runtime.SmallRuntime()
    made.containers["log"] = small_runtime.Container("log")
    with small_runtime.running(tmp_path, made) as connection:
        yield made, connection


def seen(hook, ports=()):
    annotations = {cri.PRE_STOP: json.dumps(hook)}
    if ports:
        annotations[cri.PORTS] = json.dumps(ports)
    return cri.RuntimeContainer("log", "pod", "log", 0, 1.0, True, False, annotations)


def get(port, **more):
    return {"httpGet": {"host": "127.0.0.1", "port": port, **more}}


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/quit", "/quit"),
        ("quit?now=1", "/quit?now=1"),
        ("/a b/%20é", "/a%20b/%20%C3%A9"),
        ("", "/"),
    ],
)
def test_an_http_hook_sends_kubelets_request(page, runtime, path, asked):
    port, found = page
    hooks.run(runtime[1], seen(get(port, path=path)), "", 30)
    assert [target for target, _ in found] == [asked]


def test_a_port_may_be_named(page, runtime):
    port, found = page
    ports = [{"name": "other", "containerPort": 1}, {"name": "admin", "containerPort": port}]
    headers = [{"name": "X-Why", "value": "done"}]
    hook = get("admin", path="/quit", httpHeaders=headers)
    hooks.run(runtime[1], seen(hook, ports), "", 30)
    assert found == [("/quit", "done")]


@pytest.mark.parametrize(
    "hook",
    [
        get("nowhere"),
        get(None),
        get(0),
        {"httpGet": []},
        {"sleep": {"seconds": "long"}},
        {"tcpSocket": {"port": 1}},
        {"exec": None},
        [],
        None,
    ],
    ids=str,
)
def test_a_hook_that_fails_does_not_prevent_the_stop(runtime, hook):
    assert hooks.run(runtime[1], seen(hook, [7, {"name": "x"}]), "", 5) > 4


def test_the_hook_runs_before_the_command(runtime):
    made, connection = runtime
    hooks.run(connection, seen({"exec": {"command": ["flush"]}}), "quit", 30)
    assert made.asked == [("execute", "log"), ("execute", "log")]
