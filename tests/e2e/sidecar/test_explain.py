"""`pyvgpu explain` in a real cluster, by a user with read access to only one namespace."""

import subprocess

import pytest
import rig
import runner
import sidecars

pytestmark = pytest.mark.e2e

VIEW = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}


@pytest.fixture
def ask(space, tmp_path):
    """Run `pyvgpu explain` as the namespace's default account, with the view role."""
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": space.name}
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space.name}/rolebindings"
    body = {"metadata": {"name": "view"}, "roleRef": VIEW, "subjects": [subject]}
    space.server.call("POST", path, body=body)
    mine = tmp_path / "kubeconfig"
    rig.write_kubeconfig(mine, space.name, "default")

    def run(pod):
        command = [runner.PYVGPU, "explain", pod, "-n", space.name, "--kubeconfig", mine]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return run


def test_explain_names_the_blocker_and_unreadable_objects(space, ask):
    side = sidecars.sidecar(rig.ENDS_WITH_143)  # its command is not transformed
    space.create("pods", rig.pod("p", rig.container("main", "sleep 1"), side))
    space.until("pods", "p", lambda pod: rig.exit_code(pod, "main") == 0 and rig.runs(pod, "side"))
    code, said, problem = ask("p")
    assert (code, problem) == (0, "")
    lines = said.splitlines()
    assert lines[0] == f"pod {space.name}/p: Running on node-1"
    assert lines[1] == "  main container main: ended with 0"
    assert lines[2].startswith("  sidecar side: running; when the work is done: leave")
    assert "  not known: node node-1: you may not read it" in lines
    assert lines[-1].startswith("waits for: sidecar side is left running")


def test_missing_pod_is_refused(space, ask):
    code, _, problem = ask("none")
    assert (code, "there is none in namespace" in problem) == (69, True)
