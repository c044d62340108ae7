"""Options of single nodes, which a label of the node selects."""

import json
import signal

import cluster_of_one
import pytest
from fake_kubelet import container, pod
from node_process import ended
from waiting import PROMPT

from pyvgpu import errors, names
from pyvgpu.allocator import datatypes
from pyvgpu.cli import device_plugin, node_options
from pyvgpu.cli.main import Parser
from pyvgpu.deviceplugin.cluster import node_config

LABEL = names.AGENT_CONFIG_LABEL
RESOURCES = (names.VCORE_RESOURCE, names.VMEMORY_RESOURCE)


def label(cluster, name):
    """Give the node this label; empty: none."""
    labels = {LABEL: name} if name else {}
    metadata = {"name": cluster_of_one.NODE, "uid": "uid-of-node", "labels": labels}
    cluster.api.put(f"/api/v1/nodes/{cluster_of_one.NODE}", {"metadata": metadata})


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "configs"
    made.mkdir()
    (made / "spread").write_text("# evenly\n--packing=spread\n\n")
    (made / "slow").write_text("--packing=spread\n--bind-deadline=600\n")
    return made


@pytest.fixture
def configs(folder, tmp_path):
    return node_config.NodeConfigs(folder, tmp_path / "state")


def settings_with(*lines, given=()):
    parser = Parser(allow_abbrev=False)
    device_plugin.prepare_parser(parser)
    options = parser.parse_args(["--node", "n", *given])
    config = node_config.NodeConfig("x", lines)
    merged = node_options.merged(options, config, device_plugin.GROUPS)
    return device_plugin.settings_of(merged)[0]


def test_label_selects_a_file(configs):
    assert configs.choose({LABEL: "spread"}).options == ("--packing=spread",)
    assert configs.choose({}) == node_config.NodeConfig()


def test_file_default_is_for_nodes_without_the_label(configs, folder):
    (folder / "default").write_text("--packing=spread\n")
    assert configs.choose({}) == node_config.NodeConfig("default", ("--packing=spread",))
    assert configs.choose({LABEL: "slow"}).name == "slow"


def test_label_without_a_file_is_refused_with_the_files_there_are(configs, folder):
    words = r"agent-config=other .*must be one of .*, slow, spread, for example slow$"
    with pytest.raises(errors.UsageError, match=words):
        configs.choose({LABEL: "other"})
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(errors.UsageError, match=r"agent-config=other .*so remove the label$"):
        configs.choose({LABEL: "other"})


@pytest.mark.parametrize("text", ["", "[]", '{"name": "a"}', "\xff"])
def test_damaged_record_counts_as_none(configs, tmp_path, text):
    configs.keep(node_config.NodeConfig("a", ("--packing=spread",)))
    assert configs.last() == node_config.NodeConfig("a", ("--packing=spread",))
    (tmp_path / "state" / node_config.FILE).write_text(text)
    assert configs.last() is None


def test_options_of_the_node_replace_those_of_the_command_line():
    found = settings_with(
        *("--packing=spread", "--compute-class=H100=fast", "--ignore-xids="),
        given=("--packing=binpack", "--compute-class=T4=slow", "--bind-deadline=5"),
    )
    assert found.packing is datatypes.Packing.SPREAD
    assert found.classes == (("H100", "fast"),)
    assert found.health.ignored_xids == frozenset()
    assert found.bind_seconds == 5


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--state=/tmp", "'--state=/tmp': must be one of --packing.*for example --packing=spread"),
        ("--memory-unit=1Gi", "must be one of --packing"),
        ("packing=spread", "'packing=spread': must be one of --packing"),
        ("--packing", "'--packing': must have a value after =, for example --packing=spread"),
        ("--packing=full", "'full': must be binpack or spread"),
        ("--beside-nvidia=yes", "'--beside-nvidia=yes': must have no value, for example"),
    ],
)
def test_other_and_invalid_options_are_refused(line, words):
    with pytest.raises(errors.UsageError, match=words):
        settings_with(line)


@pytest.mark.parametrize("example", node_options.ALLOWED.values())
def test_examples_in_messages_are_valid(example):
    needs = ("--time-slicing-resource", "--time-slicing-same-device")
    more = ("--time-slicing-replicas=2",) if example.startswith(needs) else ()
    assert settings_with(example, *more) != settings_with()


def test_allowed_options_are_options_of_the_agent():
    known = {option.flag for group in device_plugin.GROUPS for option in group.options}
    assert set(node_options.ALLOWED) <= known


@pytest.fixture
def started(node, cluster, folder):
    """A function that starts an agent with the folder of options."""
    return lambda: node.start("--node-config", folder, "--kubeconfig", cluster.kubeconfig)


def events_of(cluster):
    return list(cluster.api.under("/api/v1/namespaces/default/events"))


def uuids(node, cluster, *names_of_pods):
    """Start a small pod for each name; return the devices that they get."""
    found = []
    for name in names_of_pods:
        one = node.kubelet.admit(pod(name, container("a", 10, 4)))
        cluster.add(one, {})
        found.append(node.quota(node.kubelet.start_container(one, "a"))[2])
    return found


def chosen(node):
    return json.loads((node.state / node_config.FILE).read_text())["name"]


def test_agent_restarts_when_the_label_selects_other_options(node, cluster, started):
    label(cluster, "")
    agent = started()
    node.kubelet.until_offered()
    first, second = uuids(node, cluster, "a", "b")
    assert first == second  # binpack
    label(cluster, "spread")
    node.until(lambda: chosen(node) == "spread")
    node.until(
        lambda: [node.log.read_text().count(f"registered {name} ") for name in RESOURCES] == [2, 2]
    )
    node.kubelet.until_offered()
    (third,) = uuids(node, cluster, "c")
    assert third != first
    assert agent.poll() is None  # the same process
    assert ended(agent) == 0


def test_label_without_options_changes_nothing_on_a_running_node(node, cluster, started):
    label(cluster, "spread")
    agent = started()
    node.kubelet.until_offered()
    label(cluster, "no-such")
    node.until(lambda: any(event["reason"] == "VGPUNotConfigured" for event in events_of(cluster)))
    assert agent.poll() is None
    ended(agent, signal.SIGKILL)
    started()  # uses the record
    node.until(lambda: "using the last options of this node, spread" in node.log.read_text())
    node.kubelet.until_offered()


@pytest.mark.parametrize("entry", [None, "--packing=full\n"])
def test_invalid_options_leave_a_new_node_those_of_all_nodes(
    node, cluster, started, folder, entry
):
    if entry:
        (folder / "typo").write_text(entry)
    label(cluster, "typo")
    agent = started()
    node.kubelet.until_offered()
    node.until(lambda: "VGPUNotConfigured" in {event["reason"] for event in events_of(cluster)})
    (said,) = [event for event in events_of(cluster) if event["reason"] == "VGPUNotConfigured"]
    assert said["type"] == "Warning"
    assert said["involvedObject"]["kind"] == "Node"
    rule = "'full': must be binpack or spread" if entry else "must be one of the agent's"
    assert rule in said["message"]
    assert not (node.state / node_config.FILE).exists()
    label(cluster, "spread")
    node.until(lambda: (node.state / node_config.FILE).exists())
    assert agent.poll() is None


def test_first_agent_of_a_node_waits_for_the_api_server(node, cluster, folder, tmp_path):
    file = tmp_path / "unreachable"
    text = cluster.kubeconfig.read_text()
    file.write_text(text.replace("127.0.0.1", "127.0.0.2"))
    agent = node.start("--node-config", folder, "--kubeconfig", file)
    node.until(lambda: "waiting for the options of this node" in node.log.read_text())
    assert ended(agent) == 0


def test_without_an_api_server_the_option_is_refused(node, folder):
    agent = node.start("--node-config", folder)
    assert agent.wait(PROMPT) == 64
    assert "needs the API server: run as a pod, or give --kubeconfig" in node.log.read_text()
