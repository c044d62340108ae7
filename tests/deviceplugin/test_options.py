"""The options of `pyvgpu device-plugin`: what they mean, what is wrong, and gpu-manager's."""

import json
import re
from pathlib import Path

import pytest

from pyvgpu import errors
from pyvgpu.allocator import facts
from pyvgpu.cli import device_plugin, gpu_manager, table
from pyvgpu.cli.main import Parser
from pyvgpu.deviceplugin.settings import DEFAULT_LISTEN, Placement, Profile, Settings

VOLUMES = [
    {"name": name, "base": "/x", "components": {"libraries": ["libcuda.so", "libnvidia-ml.so"]}}
    for name in ("nvidia", "origin")
]


def options(*given):
    parser = Parser(allow_abbrev=False)
    device_plugin.prepare_parser(parser)
    return parser.parse_args(given)


def settings(*given):
    return device_plugin.settings_of(options("--node", "n", *given))[0]


def test_without_options_all_is_as_the_settings_have_it():
    assert settings() == Settings("n")


def test_the_node_is_what_the_variable_says_and_else_the_host(monkeypatch):
    monkeypatch.setenv("NODE_NAME", "node-7")
    assert device_plugin.settings_of(options())[0].node == "node-7"


def test_options_are_what_they_say(tmp_path):
    volumes, extra = tmp_path / "volume.conf", tmp_path / "extra-config.json"
    volumes.write_text(json.dumps({"volume": VOLUMES}))
    extra.write_text('{"default": {"devices": ["/dev/fuse", "/dev/infiniband/uverbs0"]}}')
    found = settings(
        *("--memory-unit", "1Gi", "--packing", "spread", "--bind-deadline", "5"),
        *("--placement", "extender", "--placement-key", "/key", "--profile", "gaia"),
        *("--compute-class", "H100=fast", "--compute-class", "T4=slow", "--no-require-cdi"),
        *("--volume-config", str(volumes), "--extra-config", str(extra)),
        *("--ignore-xids", "13, 31", "--recover-seconds", "7"),
    )
    assert (found.unit, found.packing, found.bind_seconds) == (1 << 30, facts.Packing.SPREAD, 5)
    assert (found.placement, found.placement_key) == (Placement.EXTENDER, Path("/key"))
    assert (found.profile, found.require_cdi) == (Profile.GAIA, False)
    assert found.classes == (("H100", "fast"), ("T4", "slow"))
    assert [it.name for it in found.volumes] == ["nvidia", "origin"]
    assert found.nodes == ("fuse", "infiniband/uverbs0")
    assert (found.health.ignored_xids, found.health.recover_seconds) == ({13, 31}, 7)
    assert settings("--ignore-xids", "").health.ignored_xids == frozenset()


OPTIONS = [it for group in device_plugin.GROUPS for it in group.options]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda it: it.flag)
def test_the_default_that_is_documented_is_the_options(option):
    page = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()
    (row,) = re.findall(rf"^\| `{option.flag}[ `].*$", page, re.MULTILINE)
    default = option.default or DEFAULTS.get(option.flag, "")
    assert not default or row.endswith((f"`{default}` |", f"; {default} |"))


DEFAULTS = {"--listen": DEFAULT_LISTEN, "--volume-config": "all", "--extra-config": "none"}

# A value that is wrong for each option that takes one, and what is said of it.
WRONG = {
    "--node": ("", "must be a name"),
    "--state": ("", "must name a path"),
    "--run": ("", "must name a path"),
    "--device-plugin-path": ("", "must name a path"),
    "--plugins-registry": ("", "must name a path"),
    "--plugins": ("", "must name a path"),
    "--pod-resources": ("", "must name a path"),
    "--cdi": ("", "must name a path"),
    "--driver-root": ("", "must name a path"),
    "--simulate": ("x9", "unknown model 'x9'"),
    "--kubeconfig": ("", "must name a path"),
    "--memory-unit": ("1000", "must be a multiple of 1 MiB, such as 256Mi"),
    "--packing": ("tight", "must be binpack or spread, such as binpack"),
    "--placement": ("node", "must be agent or extender, such as agent"),
    "--placement-key": ("", "must name a path"),
    "--compute-class": ("H100", "must be PART=NAME, such as H100=fast"),
    "--door": ("window", "must be plugin or dra, or one of them for a device's UUID"),
    "--door-seconds": ("0", "whole number of seconds from 1 to 86400, such as 30"),
    "--bind-deadline": ("0", "whole number of seconds from 1 to 86400, such as 60"),
    "--profile": ("gpu-manager", "must be pyvgpu or gaia, such as pyvgpu"),
    "--volume-config": ("", "must name a file"),
    "--extra-config": ("", "must name a file"),
    "--node-dev": ("", "must name a path"),
    "--ignore-xids": ("13;31", "must be numbers from 1 to 9999 with commas between them"),
    "--recover-seconds": ("1.5", "whole number of seconds from 1 to 86400, such as 60"),
    "--listen": ("x", "must be a port, or an address and a port, such as 9470"),
    "--display": ("", "must name a path"),
    "--audit-action": ("warn", "must be report or kill, such as report"),
    "--log-format": ("xml", "must be text or json, such as text"),
}


def test_for_each_option_with_a_value_there_is_a_wrong_one():
    assert set(WRONG) == {
        it.flag for group in device_plugin.GROUPS for it in group.options if it.value
    }


@pytest.mark.parametrize("flag", WRONG)
def test_a_wrong_value_is_named_with_rule_and_example(flag):
    text, words = WRONG[flag]
    with pytest.raises(errors.UsageError) as caught:
        settings(flag, text)
    assert str(caught.value).startswith(f"{flag} {text!r}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "given", [("--placement", "extender"), ("--placement-key", "/key")], ids=["alone", "key alone"]
)
def test_the_extender_and_its_key_go_together(given):
    with pytest.raises(errors.UsageError, match="go together, such as --placement extender"):
        settings(*given)


@pytest.mark.parametrize(
    ("flag", "content", "words"),
    [
        pytest.param("--volume-config", "{", "must be JSON", id="volumes: no JSON"),
        pytest.param(
            "--volume-config", {"volume": VOLUMES[:1]}, "one of another name", id="volumes: one"
        ),
        pytest.param(
            "--volume-config",
            {"volume": [VOLUMES[0], {**VOLUMES[1], "components": {"libraries": ["libcuda.so"]}}]},
            "volume 'origin' leaves out libnvidia-ml.so.1",
            id="volumes: without NVML",
        ),
        pytest.param("--extra-config", "[", "must be JSON, such as", id="nodes: no JSON"),
        pytest.param("--extra-config", [], "must be JSON, such as", id="nodes: a list"),
        pytest.param(
            "--extra-config",
            {"default": {"devices": ["/etc/passwd"]}},
            "'/etc/passwd' is no node in /dev",
            id="nodes: a file",
        ),
        pytest.param(
            "--extra-config",
            {"default": {"devices": ["/dev/../etc/passwd"]}},
            "is no node in /dev",
            id="nodes: out of /dev",
        ),
        pytest.param(
            "--extra-config",
            {"default": {"devices": ["/dev"]}},
            "'/dev' is no node in /dev",
            id="nodes: all of /dev",
        ),
    ],
)
def test_a_file_that_is_none_is_said(tmp_path, flag, content, words):
    file = tmp_path / "file"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(errors.DataError) as caught:
        settings(flag, str(file))
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path):
    for flag in ("--volume-config", "--extra-config"):
        with pytest.raises(errors.DataError, match="cannot be read"):
            settings(flag, str(tmp_path / "none"))


# --- gpu-manager's ------------------------------------------------------------------------------

# As its own DaemonSet starts it, and every option that it has ever had.
DAEMONSET = (
    *(
        "--v=4",
        "--hostname-override=node-7",
        "--share-mode=true",
        "--log-dir=/var/log/gpu-manager",
    ),
    *("--query-addr=0.0.0.0", "--incluster-mode=true"),
)
EVERY = {
    "--driver": "nvidia",
    "--hostname-override": "node-7",
    "--query-addr": "0.0.0.0",
    "--query-port": "5678",
    "--share-mode": "true",
    "--incluster-mode": "true",
    "--v": "2",
    "--logtostderr": "true",
    "--alsologtostderr": "false",
    "--log-dir": "/var/log",
    "--log-backtrace-at": "file.go:1",
    "--stderrthreshold": "2",
    "--vmodule": "a=1",
    "--sample-period": "1",
    "--node-labels": "a=b",
    "--virtual-manager-path": "/etc/gpu-manager/vm",
    "--checkpoint-path": "/etc/gpu-manager/checkpoint",
    "--allocation-check-period": "30",
    "--container-runtime": "docker",
    "--container-runtime-endpoint": "/var/run/dockershim.sock",
    "--cgroup-driver": "systemd",
    "--runtime-request-timeout": "5s",
    "--wait-timeout": "1m0s",
    "--addr": "/var/run/gpu-manager.sock",
}
OWN = {"--extra-config", "--volume-config", "--kubeconfig", "--device-plugin-path"}


def theirs(*given):
    return device_plugin.settings_of(options(*given))


def test_its_daemonset_is_understood():
    found, said = theirs(*DAEMONSET)
    assert (found.node, found.shares, said["verbose"]) == ("node-7", True, True)


def test_every_option_is_taken_alone_with_hyphens_and_with_underscores():
    assert {it.flag for it in gpu_manager.OPTIONS} == set(EVERY)
    assert set(table.flags(device_plugin.GROUPS)) >= OWN
    for flag, text in EVERY.items():
        for spelling in (flag, f"--{flag[2:].replace('-', '_')}"):
            given = options(f"{spelling}={text}")
            device_plugin.settings_of(given)
            (it,) = (it for it in gpu_manager.OPTIONS if it.flag == flag)
            expected = (f"{flag} means {it.means}",) if it.warns else ()
            assert gpu_manager.warnings(given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--driver", "amd"), "--driver 'amd': must be nvidia"),
        (("--share-mode=maybe",), "--share-mode 'maybe': must be true or false"),
        (("--node-labels", "pool"), "--node-labels 'pool': must be labels of a node with commas"),
        (("--node-labels", "a=b c"), "such as pool=training,example.com/rack=7"),
        (("--node-labels", "=b"), "must be labels of a node"),
        (("--node-labels", "a/b/c=d"), "must be labels of a node"),
        (("--query-port", "http"), "--query-port 'http': must be a whole number from 0 to 65535"),
        (("--query-addr", ""), "--query-addr '': must be a name"),
        (("--incluster-mode=2",), "--incluster-mode '2': must be true or false"),
        (("--v", "high"), "--v 'high': must be a whole number from 0 to 99, such as 2"),
    ],
)
def test_what_is_wrong_in_one_of_its_options_is_said(given, words):
    with pytest.raises(errors.UsageError) as caught:
        theirs(*given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ((), "127.0.0.1:5678"),
        (("--query-addr=0.0.0.0",), "0.0.0.0:5678"),
        (("--query-port=80",), "localhost:80"),
        (("--query-addr=::", "--query-port=80"), "[::]:80"),
        (("--query-addr=0.0.0.0", "--listen=9470"), "9470"),
    ],
)
def test_it_answers_where_its_daemonset_says(given, address):
    assert theirs(*given)[0].listen == address


def test_labels_of_the_node_are_its_own_and_that_of_the_model_is_the_devices():
    given = "pool=training,example.com/rack=7,gaia.tencent.com/gpu-model=any,empty="
    assert dict(theirs("--node-labels", given)[0].labels) == {
        "pool": "training",
        "example.com/rack": "7",
        "empty": "",
    }


def test_its_socket_is_where_the_same_is_answered():
    assert theirs("--addr=/x.sock")[0].display == Path("/x.sock")


def test_a_truth_may_stand_alone():
    assert theirs("--share-mode", "--logtostderr")[0].shares
    assert not theirs("--share-mode=false")[0].shares


def test_ours_counts_where_both_are_given():
    assert theirs("--hostname-override", "theirs", "--node", "ours")[0].node == "ours"
