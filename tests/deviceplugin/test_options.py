"""The options of `pyvgpu device-plugin`: valid and invalid values, and gpu-manager's options."""

import json
import re
from pathlib import Path

import pytest

from pyvgpu import errors
from pyvgpu.allocator import datatypes
from pyvgpu.cli import device_plugin, gpu_manager, table
from pyvgpu.cli.main import Parser
from pyvgpu.deviceplugin.agent_settings import (
    DEFAULT_LISTEN,
    AgentSettings,
    Oversubscription,
    Placement,
    Profile,
    TimeSlicing,
)
from pyvgpu.deviceplugin.allocation_api import Api, Configured

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


def test_option_defaults_match_the_settings():
    assert settings() == AgentSettings("n")


def test_node_name_comes_from_the_environment_or_hostname(monkeypatch):
    monkeypatch.setenv("NODE_NAME", "node-7")
    assert device_plugin.settings_of(options())[0].node == "node-7"


def test_options_set_their_settings(tmp_path):
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
    assert (found.unit, found.packing, found.bind_seconds) == (
        1 << 30,
        datatypes.Packing.SPREAD,
        5,
    )
    assert (found.placement, found.placement_key) == (Placement.EXTENDER, Path("/key"))
    assert (found.profile, found.require_cdi) == (Profile.GAIA, False)
    assert found.classes == (("H100", "fast"), ("T4", "slow"))
    assert [volume.name for volume in found.volumes] == ["nvidia", "origin"]
    assert found.nodes == ("fuse", "infiniband/uverbs0")
    assert (found.health.ignored_xids, found.health.recover_seconds) == ({13, 31}, 7)
    assert settings("--ignore-xids", "").health.ignored_xids == frozenset()


OPTIONS = [option for group in device_plugin.GROUPS for option in group.options]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda chosen: chosen.flag)
def test_documented_defaults_match(option):
    page = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()
    (row,) = re.findall(rf"^\| `{option.flag}[ `].*$", page, re.MULTILINE)
    default = option.default or DEFAULTS.get(option.flag, "")
    assert not default or row.endswith((f"`{default}` |", f"; {default} |"))


DEFAULTS = {"--listen": DEFAULT_LISTEN, "--volume-config": "all", "--extra-config": "none"}

# An invalid value of each option that takes one, and the error message.
WRONG = {
    "--node": ("a b", "must be a name in Kubernetes: lower-case letters, digits, and hyphens and"),
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
    "--node-config": ("", "must name a path"),
    "--memory-unit": ("1000", "must be a multiple of 1 MiB, such as 256Mi"),
    "--packing": ("tight", "must be binpack or spread, such as binpack"),
    "--placement": ("node", "must be agent or extender, such as agent"),
    "--placement-key": ("", "must name a path"),
    "--compute-class": ("H100", "must be PART=NAME, such as H100=fast"),
    "--allocation-api": ("window", "must be plugin, dra or time-slices, or one of them"),
    "--time-slicing-replicas": ("1", "must be a whole number from 2 to 64, such as 4"),
    "--time-slicing-resource": ("nvidia.com/", "must be the name of an extended resource"),
    "--allocation-switch-delay": ("0", "whole number of seconds from 1 to 86400, such as 30"),
    "--startup-taint": ("starting", "must be the key of a taint with a prefix, such as pyvgpu.io"),
    "--bind-deadline": ("0", "whole number of seconds from 1 to 86400, such as 60"),
    "--profile": ("gpu-manager", "must be pyvgpu or gaia, such as pyvgpu"),
    "--volume-config": ("", "must name a file"),
    "--extra-config": ("", "must name a file"),
    "--dynamic-mig": ("0", "must be none, all, or UUIDs of GPUs separated by commas, such as GPU"),
    "--mps": ("0", "must be none, all, or UUIDs of devices separated by commas, such as GPU"),
    "--suspend-host-memory": ("0%", "must be from 1% to 100% of the node's memory, or a size, "),
    "--oversubscribe": ("1", "must be a ratio above 1 and up to 16, such as 2"),
    "--oversubscribe-idle": ("0", "whole number of seconds from 1 to 86400, such as 60"),
    "--oversubscribe-slice": ("0", "whole number of seconds from 1 to 86400, such as 120"),
    "--oversubscribe-moves": ("0", "must be a whole number from 1 to 1000, such as 6"),
    "--oversubscribe-wait": ("0", "whole number of seconds from 1 to 86400, such as 600"),
    "--node-dev": ("", "must name a path"),
    "--ignore-xids": ("13;31", "must be numbers from 1 to 9999, separated by commas"),
    "--recover-seconds": ("1.5", "whole number of seconds from 1 to 86400, such as 60"),
    "--listen": ("x", "must be a port, or an address and a port, such as 5678"),
    "--display": ("", "must name a path"),
    "--audit-action": ("warn", "must be report or kill, such as report"),
    "--log-format": ("xml", "must be text or json, such as text"),
}


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        pytest.param([], 500, id="half of the node's memory by default"),
        pytest.param(["--suspend-host-memory", "100%"], 1000, id="percentage"),
        pytest.param(["--suspend-host-memory", "4KiB"], 4096, id="size"),
    ],
)
def test_host_memory_of_suspended_pods_is_a_size_or_a_part(words, limit):
    assert settings(*words).suspend_host_memory.limit(1000) == limit


def test_ratio_of_oversubscription_is_exact_in_percent():
    for ratio, percent in ((1.15, 115), (1.1, 110), (2, 200), (2.3, 230)):
        assert Oversubscription(ratio).percent == percent


def test_each_option_with_a_value_has_an_invalid_example():
    assert set(WRONG) == {
        option.flag for group in device_plugin.GROUPS for option in group.options if option.value
    }


@pytest.mark.parametrize("flag", WRONG)
def test_invalid_value_is_refused_with_rule_and_example(flag):
    text, words = WRONG[flag]
    with pytest.raises(errors.UsageError) as caught:
        settings(flag, text)
    assert str(caught.value).startswith(f"{flag} {text!r}: ")
    assert words in str(caught.value)


def test_all_devices_are_sliced_unless_their_api_is_given():
    found = settings("--time-slicing-replicas", "4")
    assert found.time_slicing == TimeSlicing(4, "pyvgpu.io/gpu-shared")
    assert found.apis == Configured(Api.TIME_SLICES)
    only = ("--allocation-api", "plugin", "--allocation-api", "GPU-a=time-slices")
    found = settings("--time-slicing-replicas", "4", *only)
    assert found.apis == Configured(Api.PLUGIN, {"GPU-a": Api.TIME_SLICES})
    assert settings().apis == Configured()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--allocation-api", "time-slices"), "such as --time-slicing-replicas 4"),
        (("--time-slicing-resource", "nvidia.com/gpu"), "such as --time-slicing-replicas 4"),
        (
            ("--time-slicing-replicas", "4", "--allocation-api", "plugin"),
            "no device is left for it; such as with --allocation-api GPU-",
        ),
        (("--time-slicing-same-device",), "such as --time-slicing-replicas 4"),
        (("--time-slicing-replicas", "4", "--no-require-cdi"), "need CDI; leave out"),
    ],
)
def test_incomplete_time_slicing_is_refused(given, words):
    with pytest.raises(errors.UsageError, match="^--") as caught:
        settings(*given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "name", ["pyvgpu.io/vcore", "pyvgpu.io/vmemory-mib", "a.kubernetes.io/gpu", "gpu", "com/gpu"]
)
def test_reserved_names_are_no_resource_of_time_slices(name):
    with pytest.raises(errors.UsageError, match=f"'{name}': must be the name of an extended"):
        settings("--time-slicing-replicas", "4", "--time-slicing-resource", name)


def test_a_gpu_has_mig_instances_for_pods_or_mps():
    with pytest.raises(errors.UsageError, match="--mps and --dynamic-mig: GPU-a is in both"):
        settings("--mps", "GPU-a,GPU-b", "--dynamic-mig", "GPU-c,GPU-a")
    assert settings("--mps", "all", "--dynamic-mig", "all").mps == {"all"}


@pytest.mark.parametrize(
    "given", [("--placement", "extender"), ("--placement-key", "/key")], ids=["alone", "key alone"]
)
def test_extender_placement_requires_a_key(given):
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
            "'/etc/passwd' is not a node in /dev",
            id="nodes: a file",
        ),
        pytest.param(
            "--extra-config",
            {"default": {"devices": ["/dev/../etc/passwd"]}},
            "is not a node in /dev",
            id="nodes: out of /dev",
        ),
        pytest.param(
            "--extra-config",
            {"default": {"devices": ["/dev"]}},
            "'/dev' is not a node in /dev",
            id="nodes: all of /dev",
        ),
    ],
)
def test_invalid_file_is_refused(tmp_path, flag, content, words):
    file = tmp_path / "file"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(errors.DataError) as caught:
        settings(flag, str(file))
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_missing_file_is_refused(tmp_path):
    for flag in ("--volume-config", "--extra-config"):
        with pytest.raises(errors.DataError, match="cannot be read"):
            settings(flag, str(tmp_path / "none"))


# --- gpu-manager's options ----------------------------------------------------------------------

# The options of its own DaemonSet, and every option that it has ever had.
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


def test_gpu_managers_daemonset_options_are_accepted():
    found, said = theirs(*DAEMONSET)
    assert (found.node, found.shares, said["verbose"]) == ("node-7", True, True)


def test_gpu_manager_options_accept_hyphens_and_underscores():
    assert {option.flag for option in gpu_manager.OPTIONS} == set(EVERY)
    assert set(table.flags(device_plugin.GROUPS)) >= OWN
    for flag, text in EVERY.items():
        for spelling in (flag, f"--{flag[2:].replace('-', '_')}"):
            given = options(f"{spelling}={text}")
            device_plugin.settings_of(given)
            (it,) = (option for option in gpu_manager.OPTIONS if option.flag == flag)
            expected = (f"{flag} is {it.means}",) if it.warns else ()
            assert gpu_manager.warnings(given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--driver", "amd"), "--driver 'amd': must be nvidia"),
        (("--share-mode=maybe",), "--share-mode 'maybe': must be true or false"),
        (("--node-labels", "pool"), "--node-labels 'pool': must be node labels, separated by"),
        (("--node-labels", "a=b c"), "such as pool=training,example.com/rack=7"),
        (("--node-labels", "=b"), "must be node labels"),
        (("--node-labels", "a/b/c=d"), "must be node labels"),
        (("--query-port", "http"), "--query-port 'http': must be a whole number from 0 to 65535"),
        (("--query-addr", ""), "--query-addr '': must be a name"),
        (("--incluster-mode=2",), "--incluster-mode '2': must be true or false"),
        (("--v", "high"), "--v 'high': must be a whole number from 0 to 99, such as 2"),
    ],
)
def test_invalid_gpu_manager_option_is_refused(given, words):
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
def test_listen_address_from_gpu_managers_options(given, address):
    assert theirs(*given)[0].listen == address


def test_node_labels_exclude_the_model():
    given = "pool=training,example.com/rack=7,gaia.tencent.com/gpu-model=any,empty="
    assert dict(theirs("--node-labels", given)[0].labels) == {
        "pool": "training",
        "example.com/rack": "7",
        "empty": "",
    }


def test_addr_option_sets_the_display_socket():
    assert theirs("--addr=/x.sock")[0].display == Path("/x.sock")


def test_boolean_option_without_value_is_true():
    assert theirs("--share-mode", "--logtostderr")[0].shares
    assert not theirs("--share-mode=false")[0].shares


def test_pyvgpu_option_overrides_gpu_managers():
    assert theirs("--hostname-override", "theirs", "--node", "ours")[0].node == "ours"
