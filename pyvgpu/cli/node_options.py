"""Options of the agent that differ between nodes: `pyvgpu device-plugin --node-config`."""

from __future__ import annotations

import argparse
import contextlib
import logging
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin.cluster import node_config, own_node
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyvgpu.cli.table import Group
    from pyvgpu.deviceplugin.agent_settings import AgentSettings

log = logging.getLogger(__name__)

# Those that need nothing of the agent's pod, its rights or other components, with examples. The
# memory unit is not one of them: the webhook and the totals of namespaces count in one unit.
ALLOWED = {
    "--packing": "--packing=spread",
    "--compute-class": "--compute-class=H100=fast",
    "--allocation-api": "--allocation-api=dra",
    "--time-slicing-replicas": "--time-slicing-replicas=4",
    "--time-slicing-resource": "--time-slicing-resource=nvidia.com/gpu.shared",
    "--time-slicing-same-device": "--time-slicing-same-device",
    "--allocation-switch-delay": "--allocation-switch-delay=60",
    "--beside-nvidia": "--beside-nvidia",
    "--bind-deadline": "--bind-deadline=600",
    "--dynamic-mig": "--dynamic-mig=all",
    "--no-driver-limits": "--no-driver-limits",
    "--ignore-xids": "--ignore-xids=13,31",
    "--recover-seconds": "--recover-seconds=120",
    "--audit-action": "--audit-action=kill",
}
AGAIN_SECONDS = 1.0


def merged(
    options: argparse.Namespace, config: node_config.NodeConfig, groups: Iterable[Group]
) -> argparse.Namespace:
    """Return *options* with those of *config* in their place; UsageError if one is not allowed.

    An option that may be given several times replaces all of the command line. Its values are not
    checked.
    """
    for word in config.options:
        flag, equals, _ = word.partition("=")
        example = ALLOWED.get(flag)
        if example is None:
            raise errors.UsageError(
                f"{word!r}: must be one of {', '.join(ALLOWED)}, with its value after =, for "
                "example --packing=spread"
            )
        if bool(equals) != ("=" in example):
            rule = "must have no value" if equals else "must have a value after ="
            raise errors.UsageError(f"{word!r}: {rule}, for example {example}")
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for group in groups:
        group.add(parser)
    found = parser.parse_args(config.options)  # cannot fail: flags and their values were checked
    given = {name: value for name, value in vars(found).items() if value not in (None, False)}
    return argparse.Namespace(**{**vars(options), **given})


class NodeOptions:
    """The options with which the agent runs on this node."""

    def __init__(
        self, settings: AgentSettings, check: Callable[[node_config.NodeConfig], object]
    ) -> None:
        """Read nothing yet; UsageError without an API server.

        *settings* name the folder; *check* raises UsageError for invalid options.
        """
        if settings.node_config is None:
            raise ValueError("no folder")
        if settings.kubeconfig is None and not apiserver.is_pod():
            raise errors.UsageError(
                f"--node-config {settings.node_config}: needs the API server: run as a pod, or "
                "give --kubeconfig, for example --kubeconfig /root/.kube/config"
            )
        self._settings = settings
        self._configs = node_config.NodeConfigs(settings.node_config, settings.state)
        self._check = check
        self.current = node_config.NodeConfig()

    def choose(self, wait: Callable[[float], bool]) -> node_config.NodeConfig:
        """Return the options that the node's labels select, which :attr:`current` then has.

        If they select no valid ones, or the API server does not answer: the last valid ones. If
        there are none, it returns no options in the first case, and waits for the API server in
        the second; *wait* sleeps for some seconds, and returns whether to end.
        """
        problem = ""
        while True:
            try:
                self.current = self._valid(self._labels())
                self._configs.keep(self.current)
                break
            except (errors.UnavailableError, errors.UsageError) as exc:
                last = self._configs.last()
                if last is not None or isinstance(exc, errors.UsageError):
                    self.current = last or node_config.NodeConfig()
                    called = self.current.name or "none, so those of all nodes"
                    log.warning("using the last options of this node, %s: %s", called, exc)
                    break
                if problem != str(exc):
                    problem = str(exc)
                    log.warning("waiting for the options of this node: %s", exc)
                if wait(AGAIN_SECONDS):
                    break
        if self.current.name:
            log.info("options of this node, %s: %s", self.current.name, self.current.options)
        return self.current

    def is_current(self, labels: Mapping[str, object]) -> bool:
        """Return whether *labels* select the current options; UsageError if no valid ones.

        UnavailableError if the folder cannot be read.
        """
        return self._valid(labels) == self.current

    def _valid(self, labels: Mapping[str, object]) -> node_config.NodeConfig:
        found = self._configs.choose(labels)
        try:
            self._check(found)
        except errors.UsageError as exc:
            raise errors.UsageError(f"options of nodes, {found.name}: {exc}") from exc
        return found

    def _labels(self) -> Mapping[str, object]:
        kubeconfig = self._settings.kubeconfig
        api = apiserver.connect(None if kubeconfig is None else str(kubeconfig))
        with contextlib.closing(api):
            node = own_node.OwnNode(api, self._settings.node)
            node.sync()
            labels: Mapping[str, object] = node.metadata().get("labels") or {}
            return labels
