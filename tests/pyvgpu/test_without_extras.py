"""Every command in an install without extras: its help, or one line that names the extra."""

import importlib.metadata
import os

import bare
import pytest

from pyvgpu.cli.completion import SHELLS
from pyvgpu.cli.main import KUBECTL, PYVGPU

MAINS = {"main": PYVGPU, "kubectl_main": KUBECTL}
EXTRAS = ("node", "kubernetes", "page", "report")  # for users of pyvgpu; its developers:
OTHERS = {"browser", "clients", "docs", "e2e", "lint", "lowest", "release", "test", "wheels"}
COMMANDS = [(main, name) for main, program in MAINS.items() for name, _, _ in program.commands]
# Exit codes there of commands that need no extra.
WITHOUT = {
    "run": (("--simulate", "h100", "--vmemory", "1GiB", "--", "true"), 0),
    "ps": ((), 0),
    "top": (("--once", "--interval", "0.1"), 0),
    "set": (("no-such-run", "--vcore", "5"), 64),
    "suspend": (("no-such-run",), 64),
    "resume": (("no-such-run",), 64),
    "cdi": (("--simulate", "h100", "--devices"), 0),
    "uninstall": (("--dry-run",), 0),
    "slurm-plugin": (("--include", "nowhere"), 64),
    "replay": (("no-such-file.json",), 69),
    "mirror": (("--dry-run", "--driver-root", "."), 69),
    "flexvolume": (("init",), 0),
    "control-nodes": ((), 64),  # outside of a cluster
    "cordon": (("GPU-0", "--state", "nowhere"), 69),
    "manifests": ((), 0),
    "support-bundle": (("--output", "bundle.tar.gz"), 0),
    "completion": (("bash",), 0),
    "manual": ((), 0),
    "calibrate": (("nothing",), 64),  # there is no such record
    "doctor": ((), None),  # 69 where neither a driver nor the simulator works
}


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Return an environment without a cluster and folders of the user; change to a new folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pod.yaml").write_text(bare.POD)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    places = {"HOME": "/nonexistent", "PYVGPU_SIMULATED_MACHINES": str(tmp_path / "machines")}
    return {**kept, **places, "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.slow
def test_extras_are_not_installed():
    assert {"pyvgpu", "cffi", "rich"} <= bare.installed()
    assert {"cryptography", "grpc", "kubernetes", "prometheus_client", "pytest"} <= set(
        bare.blocked()
    )
    assert not {"pyvgpu", "cffi", "_cffi_backend", "rich", "yaml"} & set(bare.blocked())


def test_every_extra_for_users_is_tried():
    extras = importlib.metadata.metadata("pyvgpu").get_all("Provides-Extra")
    assert set(extras) == {*EXTRAS, *OTHERS}


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", *EXTRAS])
@pytest.mark.parametrize(("main", "name"), COMMANDS)
def test_help_works_with_and_without_extras(main, name, extra):
    ran = bare.run(main, name, "--help", extra=extra)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"usage: {MAINS[main].name} {name}")


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_all_commands(shell):
    ran = bare.run("main", "completion", shell)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert all(name in ran.stdout for name, _, _ in PYVGPU.commands)


def test_man_page_has_all_commands():
    ran = bare.run("main", "manual")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count(".SS pyvgpu ") == len(PYVGPU.commands)


@pytest.mark.parametrize(("main", "name"), sorted(bare.NEEDS))
def test_command_that_needs_an_extra_names_it_in_one_line(environment, main, name):
    arguments, extra = bare.NEEDS[main, name]
    ran = bare.run(main, name, *arguments, env=environment)
    assert (ran.returncode, ran.stdout) == (69, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("pyvgpu: ")
    assert f"pip install 'pyvgpu[{extra}]'" in line


@pytest.mark.parametrize("name", ["device-plugin", "dra-driver"])
def test_the_node_extra_suffices_for_the_agent(environment, tmp_path, name):
    options = ("--simulate", "h100", "--state", tmp_path / "state", "--kubeconfig", "none")
    ran = bare.run("main", name, *options, env=environment, extra="node")
    assert ran.returncode == 65, ran.stderr
    assert "/none: no such file" in ran.stderr
    assert "pip install" not in ran.stderr


def test_commands_need_no_other_extras_than_those():
    assert {extra for _, extra in bare.NEEDS.values()} == set(EXTRAS) - {"page"}


def test_the_page_of_top_names_its_extra(environment):
    ran = bare.run("main", "top", "--serve", "0", env=environment)
    assert (ran.returncode, ran.stdout) == (69, "")
    assert ran.stderr == "pyvgpu: aiohttp is not installed: pip install 'pyvgpu[page]'\n"


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_command_that_needs_no_extra_works(environment, name):
    arguments, code = WITHOUT[name]
    ran = bare.run("main", name, *arguments, env=environment)
    assert code is None or ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "pip install 'pyvgpu[" not in ran.stderr


def test_each_command_is_in_one_of_the_two_tables():
    named = [("main", name) for name in WITHOUT] + list(bare.NEEDS)
    assert sorted(named) == sorted(COMMANDS)
