"""Termination of Jobs' sidecars in a real cluster, by sidecar-controller and sidecar-node."""

import datetime
import shlex
import subprocess
import sys

import pytest
import rig
import sidecars
import waiting

pytestmark = pytest.mark.e2e

MAIN = "sleep 1"
LONG = 10 * rig.SECONDS


def test_sidecar_that_wrongly_declares_exit_code_0_is_swapped(space, parts):
    side = sidecars.sidecar(rig.IGNORES_TERM, EXITS_ZERO="true", GRACE_SECONDS="1")
    sidecars.create_job(space, rig.container("main", MAIN), side)
    pod = sidecars.has_ended(space)
    assert rig.exit_code(pod, "side") == 0
    assert rig.state(pod, "side")["lastState"]["terminated"]["exitCode"] == 137


def test_sidecars_own_grace_period_overrides_the_pods(space, parts):
    side = sidecars.sidecar(rig.IGNORES_TERM, GRACE_SECONDS="1")
    sidecars.create_job(
        space, rig.container("main", MAIN), side, terminationGracePeriodSeconds=LONG
    )
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


def test_sidecar_with_an_unavailable_image_does_not_block_its_job(space, parts):
    side = {**sidecars.sidecar(""), "image": "localhost/none:1", "imagePullPolicy": "IfNotPresent"}
    sidecars.create_job(space, rig.container("main", MAIN), side)
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


def hooked(said, hook, stopping="true"):
    """Return a sidecar whose preStop hook and SIGTERM handler write into a host file."""
    side = sidecars.sidecar(
        f"trap 'echo term >> /said; {stopping}; exit 0' TERM; {rig.RUNS}", EXITS_ZERO="true"
    )
    side["lifecycle"] = {"preStop": hook}
    side["volumeMounts"] = [{"name": "said", "mountPath": "/said"}]
    file = {"name": "said", "hostPath": {"path": str(said), "type": "FileOrCreate"}}
    return {"side": side, "volumes": [file], "terminationGracePeriodSeconds": 30}


def create_hooked(space, made, main=MAIN):
    side = made.pop("side")
    sidecars.create_job(space, rig.container("main", main), side, **made)


def shell(script):
    return {"exec": {"command": ["/bin/sh", "-c", script]}}


@pytest.fixture
def said(tmp_path):
    return tmp_path / "said"


def test_prestop_hook_runs_before_the_signal(space, parts, said):
    create_hooked(space, hooked(said, shell("echo hook >> /said")))
    sidecars.has_ended(space)
    assert said.read_text().split() == ["hook", "term"]


def test_sleep_hook_delays_the_signal(space, parts, said):
    """The signal comes when the main container has been done for the length of the sleep."""
    made = hooked(said, {"sleep": {"seconds": 3}})
    create_hooked(space, made)
    pod = sidecars.has_ended(space)
    ends = [rig.state(pod, name)["state"]["terminated"] for name in ("main", "side")]
    main, side = (datetime.datetime.fromisoformat(end["finishedAt"]) for end in ends)
    assert side - main >= datetime.timedelta(seconds=2)  # kubelet reports whole seconds
    assert said.read_text().split() == ["term"]


@pytest.mark.parametrize("port", [8080, "admin"])
def test_http_hook_runs_before_the_signal(space, parts, said, port):
    """The sidecar serves a page on the pod's address that writes the file."""
    page = "#!/bin/sh\necho hook >> /said\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'"
    serve = (
        f"mkdir -p /www/cgi-bin; printf {shlex.quote(page)} > /www/cgi-bin/quit; "
        "/bin/busybox chmod +x /www/cgi-bin/quit; /bin/busybox httpd -p 8080 -h /www"
    )
    made = hooked(said, {"httpGet": {"path": "/cgi-bin/quit", "port": port}})
    made["side"]["ports"] = [{"name": "admin", "containerPort": 8080}]
    command = made["side"]["command"]
    command[-1] = f"{serve}; {command[-1]}"
    create_hooked(space, made, main="sleep 3")
    sidecars.has_ended(space)
    assert said.read_text().split() == ["hook", "term"]


@pytest.fixture
def usr1(tmp_path):
    """Return an image with another stop signal."""
    below, made, name = tmp_path / "below.tar", tmp_path / "usr1.tar", "localhost/usr1:1"
    subprocess.run(["ctr", "images", "export", below, rig.BUSYBOX], check=True)
    image = [sys.executable, rig.DEPLOY / "image.py", made, name, "--on", below]
    subprocess.run([*image, "--stop-signal", "SIGUSR1"], check=True)
    subprocess.run(["ctr", "images", "import", "--local", made], check=True)
    return name


def test_sidecar_gets_the_stop_signal_of_its_image(space, parts, usr1):
    script = f"trap 'exit 0' USR1; trap 'exit 1' TERM; {rig.RUNS}"
    side = sidecars.sidecar(script, EXITS_ZERO="true") | {"image": usr1}
    sidecars.create_job(space, rig.container("main", MAIN), side)
    state = rig.state(sidecars.has_ended(space), "side")
    assert (state["state"]["terminated"]["exitCode"], state["restartCount"]) == (0, 0)


def test_ordered_sidecars_are_signalled_one_after_the_other(space, parts, said):
    file = {"name": "said", "hostPath": {"path": str(said), "type": "FileOrCreate"}}
    mount = {"volumeMounts": [{"name": "said", "mountPath": "/said"}]}
    sides = []
    for name, order, stopping in (("b", "2", "true"), ("a", "1", "sleep 3")):
        script = (
            f"trap '{stopping}; echo {name} >> /said; exit 0' TERM; echo up >> /said; {rig.RUNS}"
        )
        side = sidecars.sidecar(script, EXITS_ZERO="true", ORDER=order)
        sides.append(side | mount | {"name": name})
    both_run = 'until [ "$(grep -c up /said)" = 2 ]; do sleep 0.1; done'
    main, more = rig.container("main", both_run) | mount, {"terminationGracePeriodSeconds": 30}
    sidecars.create_job(space, main, *sides, volumes=[file], **more)
    sidecars.has_ended(space)
    assert said.read_text().split() == ["up", "up", "a", "b"]


@pytest.mark.parametrize(
    ("command", "restarts"), [("echo > /quit", 0), ("exit 1", 1)], ids=["ends it", "fails"]
)
def test_stop_command_is_not_followed_by_a_signal(space, parts, command, restarts):
    """It sees the command's file a second later; a signal before would make it fail."""
    script = "trap 'exit 143' TERM; until [ -e /quit ]; do sleep 1; done; sleep 1"
    side = sidecars.sidecar(script, COMMAND=command, GRACE_SECONDS="10")
    sidecars.create_job(space, rig.container("main", MAIN), side)
    pod = sidecars.has_ended(space)
    state = rig.state(pod, "side")
    assert (rig.exit_code(pod, "side"), state["restartCount"]) == (0, restarts)


@pytest.mark.alone
@pytest.mark.row(13)
def test_node_agent_killed_during_a_hook_runs_it_once(space, parts, said):
    create_hooked(space, hooked(said, shell("echo hook >> /said; sleep 3")))
    waiting.wait_until(lambda: said.exists() and said.read_text())
    parts.kill("node")
    parts.start_node()
    sidecars.has_ended(space)
    assert said.read_text().split() == ["hook", "term"]


@pytest.mark.alone
@pytest.mark.row(13)
def test_node_agent_killed_during_a_stop_continues_it(space, parts, said):
    create_hooked(space, hooked(said, shell("true"), stopping="sleep 4"))
    waiting.wait_until(lambda: said.exists() and said.read_text())
    parts.kill("node")
    parts.start_node()
    pod = sidecars.has_ended(space)
    assert (rig.phase(pod), rig.state(pod, "side")["restartCount"]) == ("Succeeded", 0)


@pytest.mark.alone
@pytest.mark.row(12)
def test_restarted_controller_ends_sidecars_of_work_done_meanwhile(space, parts):
    parts.kill("controller")
    sidecars.create_job(space, rig.container("main", MAIN), sidecars.sidecar(rig.IGNORES_TERM))
    space.until_any("pods", f"{sidecars.JOB}=j", lambda pod: rig.exit_code(pod, "main") == 0)
    parts.drop_lease()
    parts.start_controller()
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"
