"""The options of this node: one file of a folder, selected by a label of the node.

The folder is a mounted ConfigMap. A file has one option on each line, such as `--packing=spread`;
empty lines and lines that begin with # do not count. The file `default` is for nodes without the
label. The last valid choice is stored in the agent's state folder, and holds while the API server
does not answer, or while the label selects no valid file:

node-config.json    {"name": "a100", "options": ["--packing=spread"]}
"""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.deviceplugin.grants import events
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyvgpu.deviceplugin.cluster import own_node

log = logging.getLogger(__name__)

DEFAULT = "default"  # the file for nodes without the label
FILE = "node-config.json"  # in the state folder
POLL_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class NodeConfig:
    """The chosen options."""

    name: str = ""  # of the file; empty: the node has none
    options: tuple[str, ...] = ()  # each with its value, as on the command line


class NodeConfigs:
    """The files of a folder, and the record of the last choice."""

    def __init__(self, folder: Path, state: Path) -> None:
        self._folder = folder
        self._record = state / FILE

    def choose(self, labels: Mapping[str, object]) -> NodeConfig:
        """Return the options that a node's *labels* select; UsageError if there is no such file.

        UnavailableError if the folder cannot be read.
        """
        try:
            known = {
                path.name: path
                for path in self._folder.iterdir()
                if path.is_file() and not path.name.startswith(".")
            }
            wanted = str(labels.get(names.AGENT_CONFIG_LABEL) or "")
            if not wanted and DEFAULT not in known:
                return NodeConfig()
            if wanted and wanted not in known:
                listed = ", ".join(sorted(known))
                raise errors.UsageError(
                    f"label {names.AGENT_CONFIG_LABEL}={wanted} of this node: must be one of the "
                    f"agent's node options, {listed}, for example {min(known)}"
                    if known
                    else f"label {names.AGENT_CONFIG_LABEL}={wanted} of this node: there are no "
                    "node options, so remove the label"
                )
            name = wanted or DEFAULT
            text = known[name].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise errors.UnavailableError(
                f"{self._folder}: cannot be read: {errors.reason_of(exc)}"
            ) from exc
        lines = (line.strip() for line in text.splitlines())
        return NodeConfig(name, tuple(line for line in lines if line and line[0] != "#"))

    def keep(self, config: NodeConfig) -> None:
        """Record *config* for :meth:`last`."""
        try:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write(self._record, json.dumps(dataclasses.asdict(config)).encode())
        except OSError as exc:
            log.warning("%s: cannot be written: %s", self._record, exc)

    def last(self) -> NodeConfig | None:
        """Return the recorded choice; None if there is none."""
        try:
            found = json.loads(self._record.read_bytes())
            return NodeConfig(str(found["name"]), tuple(map(str, found["options"])))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
            log.warning("%s: cannot be read: %s", self._record, exc)
            return None


class ConfigWatch:
    """Ends :meth:`run` once the node's labels select other options."""

    def __init__(
        self,
        node: own_node.OwnNode,
        is_current: Callable[[Mapping[str, object]], bool],
        report: Callable[[events.GrantEvent], None],
    ) -> None:
        """Read nothing yet.

        *is_current* tells whether the agent runs with the options that labels select; UsageError
        or UnavailableError if they select no valid ones.
        """
        self._node = node
        self._is_current = is_current
        self._report = report
        self._problem = ""
        self.outdated = False

    def run(self, wait: Callable[[float], bool]) -> None:
        """Poll periodically until *wait*, which sleeps for some seconds, returns true."""
        while not self.outdated and not wait(POLL_SECONDS):
            self.poll()

    def poll(self) -> None:
        """Compare once; while the node or its options cannot be read, nothing changes."""
        try:
            labels = self._node.metadata().get("labels") or {}
        except errors.PyVgpuError:
            return
        try:
            self.outdated = not self._is_current(labels)
            self._problem = ""
        except (errors.UsageError, errors.UnavailableError) as exc:
            self._complain(f"the options of node {self._node.name} stay as they are: {exc}")

    def _complain(self, text: str) -> None:
        if text == self._problem:
            return
        self._problem = text
        log.warning("%s", text)
        reason = events.Reason.NOT_CONFIGURED
        name = self._node.name
        self._report(events.GrantEvent(self._node.uid, "", name, text, reason, of_node=True))
