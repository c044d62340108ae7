"""`pyvgpu support-bundle`: collect diagnostics for support, without secrets."""

from __future__ import annotations

import dataclasses
import datetime
import io
import os
import platform
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.bundle import allow_lists, machine_diagnostics
from pyvgpu.cli import cluster_options, table, versions
from pyvgpu.doctor import node_checks

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

_DESCRIPTION = """\
Collect diagnostics for support: versions, the doctor's report, kernel and driver facts, quotas and
ledgers, the mirror, the agent's metrics; and of a cluster, if there is a kubeconfig, our own
programs with their logs, and the device requests and allocations of pods. Fields are packed by
allow-list: no Secret, no token, and no environment variable, command or image of users' pods. The
contents are listed; review them before you send the bundle.
"""
_EXAMPLES = """\
examples:
  pyvgpu support-bundle
  pyvgpu support-bundle --print
  pyvgpu support-bundle --no-cluster --output /tmp/help.tar.gz
"""
_OUTPUT_RULE = "must be a new file in a folder that exists, such as /tmp/help.tar.gz"
_OF_A_NODE = node_checks.NodePaths()
_OWN = f"{cluster_options.NAMESPACE},{cluster_options.AGENTS}"


@dataclasses.dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle."""

    name: str  # below the bundle's own folder
    content: bytes


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu support-bundle`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add(
        "--output",
        metavar="FILE",
        type=Path,
        help="write it to FILE (here, named by machine and time)",
    )
    add("--print", action="store_true", help="list the contents, and write nothing")
    for name, default, what in (
        ("--state", _OF_A_NODE.state, "the agent's state"),
        ("--run", Path("/run/pyvgpu-agent"), "the files of running containers"),
    ):
        add(name, metavar="DIR", type=Path, default=default, help=f"{what} (%(default)s)")
    add(
        "--agent",
        metavar="[ADDRESS:]PORT",
        default=_OF_A_NODE.agent,
        help="the agent's --listen address (%(default)s)",
    )
    add("--log", metavar="FILE", type=Path, action="append", help="also pack this log")
    add("--no-cluster", action="store_true", help="do not query an API server")
    add(
        "--own-namespaces",
        metavar="NAMES",
        type=_read_namespaces,
        default=_OWN,
        help="the namespaces of our programs, separated by commas (%(default)s)",
    )
    cluster_options.add_context(parser)


def _read_namespaces(text: str) -> list[str]:
    return [table.namespace(name, "--own-namespaces") for name in text.split(",")]


def run(options: argparse.Namespace) -> int:
    """Collect, write, and list the contents."""
    now = datetime.datetime.now(datetime.UTC)
    files = [*_files(options)]
    listed = "\n".join(f"{len(file.content):>9}  {file.name}" for file in files)
    if options.print:
        print(listed)
        return 0
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    path = options.output or Path(f"pyvgpu-support-{platform.node()}-{stamp}.tar.gz")
    _pack(path, files, now.timestamp())
    print(f"{listed}\n{path.absolute()}")
    return 0


def _files(options: argparse.Namespace) -> Iterator[BundleFile]:
    for name, content in _contents(options):
        yield BundleFile(name, machine_diagnostics.encoded(content))


def _contents(options: argparse.Namespace) -> Iterator[tuple[str, object]]:
    yield "about.json", machine_diagnostics.about(versions.text())
    where = node_checks.NodePaths(state=options.state, agent=options.agent)
    yield from machine_diagnostics.documents(where, options.run, os.environ)
    for log in options.log or ():
        try:
            yield f"logs/{log.name}", allow_lists.text(log.read_text(errors="replace"))
        except OSError as exc:
            raise errors.of_files(
                f"--log {log}: cannot be read", exc, "must be a file, such as /var/log/syslog"
            ) from exc
    if not options.no_cluster:
        yield from _of_the_cluster(options)


def _of_the_cluster(options: argparse.Namespace) -> Iterator[tuple[str, object]]:
    from pyvgpu.bundle import cluster_diagnostics as things
    from pyvgpu.kube import apiserver

    try:
        api = apiserver.connect(options.kubeconfig, context=options.context)
    except errors.PyVgpuError as exc:
        if options.kubeconfig or options.context:
            raise
        yield "cluster/absent.txt", f"{exc}\n"
        return
    yield from things.documents(api, options.own_namespaces)


def _pack(path: Path, files: Sequence[BundleFile], made: float) -> None:
    """Write *files* to *path*, which must not exist; *made* is the modification time of all."""
    folder = path.name.partition(".")[0]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as exc:
        raise errors.UsageError(f"--output {path}: already exists; {_OUTPUT_RULE}") from exc
    except OSError as exc:
        raise errors.of_files(f"--output {path}: cannot be created", exc, _OUTPUT_RULE) from exc
    try:
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for file in files:
                entry = tarfile.TarInfo(f"{folder}/{file.name}")
                entry.size, entry.mtime, entry.mode = len(file.content), int(made), 0o600
                archive.addfile(entry, io.BytesIO(file.content))
    except OSError as exc:
        path.unlink(missing_ok=True)
        raise errors.of_files(f"--output {path}: cannot be written", exc) from exc
