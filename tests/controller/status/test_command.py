"""`pyvgpu status-page` as a process: HTTPS, bearer tokens and termination."""

import json
import ssl

import pytest
import served
import small_api
import status_cluster
from status_cluster import VIEWER, StatusApi
from waiting import wait_until

from pyvgpu.cli import status_page

SECRET = f"/api/v1/namespaces/pyvgpu/secrets/{status_page.NAME}"
HOST = f"{status_page.NAME}.pyvgpu.svc"


@pytest.fixture
def program(tmp_path):
    with small_api.running(StatusApi()) as (api, connection):
        status_cluster.fill(api, nodes=2)
        api.put(SECRET, {"metadata": {"name": status_page.NAME, "namespace": "pyvgpu"}})
        made = served.Program("status-page", connection, tmp_path, "--cluster", "frankfurt")
        made.api = api
        yield made
        made.close()


@pytest.mark.slow
def test_page_is_served_over_https_and_data_needs_a_token(program):
    program.until_ready()
    authority = served_authority(program.api)
    with program.connected(HOST, ssl.create_default_context(cadata=authority)) as client:
        client.request("GET", "/status")
        answer = client.getresponse()
        assert answer.read().startswith(b"<!doctype html>")
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        client.request("GET", "/status", headers={"If-None-Match": answer.headers["ETag"]})
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (304, b"")
        client.request("GET", "/status.json")
        answer = client.getresponse()
        assert answer.status == 401
        answer.read()
        client.request("GET", "/status.json", headers={"Authorization": f"Bearer {VIEWER}"})
        answer = client.getresponse()
        found = json.loads(answer.read())
        tag = answer.headers["ETag"]
        assert (found["cluster"], found["totals"]["devices"]) == ("frankfurt", 16)
        fields = {"Authorization": f"Bearer {VIEWER}", "If-None-Match": tag}
        client.request("GET", "/status.json?search=nothing-is-called-so", headers=fields)
        answer = client.getresponse()
        assert json.loads(answer.read())["nodes"]["rows"] == []
        client.request("POST", "/status.json", b"{}", {"Content-Type": "application/json"})
        assert client.getresponse().status == 404
    wait_until(lambda: 'code="401",path="/status.json"} 1.0' in program.page("/metrics")[1])
    assert "pyvgpu_status_nodes 2.0\n" in program.page("/metrics")[1]
    assert program.end()[0] == 0


def served_authority(api):
    import base64

    return base64.b64decode(api.read(SECRET)["data"]["ca.crt"]).decode()


@pytest.mark.parametrize("port", ["0", "x", "70000", "-1"])
def test_an_invalid_agent_port_is_a_usage_error(program, port, tmp_path):
    program.close()
    with small_api.running(StatusApi()) as (_, connection):
        other = served.Program("status-page", connection, tmp_path, f"--agent-port={port}")
        code, said = other.refused()
        other.close()
    assert code == 64
    assert f"--agent-port '{port}': must be a port from 1 to 65535, such as 5678" in said
