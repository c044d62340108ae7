"""`pyvgpu top --serve`: the status page for the runs of one machine."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess

import pytest
from runner import PYVGPU
from waiting import WHOLE, wait_until

from pyvgpu import cli, errors, shim
from pyvgpu.cli import top_page

GIB = 1 << 30


@contextlib.contextmanager
def served(runner, *arguments):
    """Yield the port of a page, and end it with SIGTERM."""
    with subprocess.Popen(
        [PYVGPU, "top", "--serve", *arguments],
        env=runner.environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as page:
        try:
            line = page.stderr.readline()
            found = re.search(r"serving http://(\S+):(\d+)/status; Ctrl-C ends it", line)
            assert found, line
            yield int(found[2])
            page.send_signal(signal.SIGTERM)
            assert page.wait(WHOLE) == 0
        finally:
            page.kill()


def fetch(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WHOLE)
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    assert answer.status == 200
    return content


def metrics(port):
    return fetch(port, "/metrics")


@pytest.mark.slow
def test_the_page_shows_the_runs(runner, name):
    tenant = [str(shim.tenant_program()), "hold", str(GIB)]
    options = ("--name", name, "--vmemory", "2GiB", "--vcore", "30")
    with (
        runner.started(*options, "--", *tenant) as process,
        served(runner, "0", "--interval", "0.1") as port,
    ):
        assert "<title>pyvgpu</title>" in fetch(port, "/status")

        def entry():
            document = json.loads(fetch(port, "/status.json"))
            assert (document["kind"], document["holder"]) == ("node", "run")
            parts = [part for device in document["devices"] for part in device["containers"]]
            return next((part for part in parts if part["pod"] == name), None)

        wait_until(lambda: (found := entry()) and (found["usedBytes"] or 0) > GIB)
        found = entry()
        assert (found["allocated"], found["limit"]) == (0.3, 0.3)
        assert found["allocatedBytes"] == 2 * GIB
        assert found["state"] == "idle"
        used = re.search(
            rf'pyvgpu_run_memory_used_bytes{{.*run="{name}",.*}} (\S+)', metrics(port)
        )
        assert float(used[1]) > GIB
        assert str(GIB) not in json.dumps(found).replace(str(2 * GIB), "")  # no arguments
        process.stdin.close()
        process.wait(WHOLE)
        wait_until(lambda: name not in fetch(port, "/status.json"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("5678", ("127.0.0.1", 5678)),
        ("127.0.0.1:5678", ("127.0.0.1", 5678)),
        ("[::1]:5678", ("::1", 5678)),
        ("0.0.0.0:5678", ("0.0.0.0", 5678)),
        ("192.0.2.7:5678", ("192.0.2.7", 5678)),
    ],
)
def test_numbers_are_served_as_given(text, address):
    assert top_page._address(text) == address


def test_a_name_must_stand_for_the_loopback_device(monkeypatch):
    def resolved(*addresses):
        monkeypatch.setattr(
            top_page.socket, "getaddrinfo", lambda *_: [(2, 1, 6, "", (x, 0)) for x in addresses]
        )

    resolved("127.0.0.1", "::1")
    assert top_page._address("localhost:5678") == ("127.0.0.1", 5678)
    resolved("127.0.0.1", "192.0.2.7")
    with pytest.raises(errors.UsageError, match=r"station is 127\.0\.0\.1, 192\.0\.2\.7, which"):
        top_page._address("station:5678")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--serve", "x"], "--serve 'x': must be a port, or an address and a port"),
        (["--serve", "1", "--once"], "--serve and --once: must not both be given"),
        (["--serve", "1", "--json"], "--serve and --json: must not both be given"),
        (["--sort", "size"], "--sort 'size': must be one of age, name, vcore"),
    ],
)
def test_invalid_options_are_refused(capsys, arguments, message):
    assert cli.main(["top", *arguments]) == 64
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_refused(runner):
    with served(runner, "0") as port:
        ran = subprocess.run(
            [PYVGPU, "top", "--serve", str(port)],
            env=os.environ,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 69
    assert f"--serve 127.0.0.1:{port}: " in ran.stderr
