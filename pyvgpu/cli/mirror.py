"""`pyvgpu mirror`: mirror the node's driver for containers, with the shim in it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyvgpu
from pyvgpu import errors, log, shim
from pyvgpu.cli import progress
from pyvgpu.deviceplugin.gpu_manager import volume_conf
from pyvgpu.volumes import (
    cdi,
    driver_follower,
    folder_watch,
    mirror_plan,
    node_mirror,
    root,
    survey,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rich.tree import Tree

    from pyvgpu.volumes import installation


OUTPUT = "/var/lib/pyvgpu/driver"

_WIDTH = 8192  # longer than any path

_DESCRIPTION = f"""\
Mirror the installed NVIDIA driver into a folder, for containers: a volume `shared`, in which the
shim replaces CUDA and NVML, and a volume `exclusive`, with the unmodified driver. The folder's
link `current` points to the mirror of the driver that is installed now; a mirror that a container
has mounted never changes.

The default of --output is the base of the volumes of --volume-config, else {OUTPUT}.
"""
_EXAMPLES = """\
examples:
  pyvgpu mirror --dry-run
  pyvgpu mirror --output /srv/driver
  pyvgpu mirror --driver-root /run/nvidia/driver --json
  pyvgpu mirror --volume-config /etc/gpu-manager/volume.conf --follow
  pyvgpu mirror --cdi /var/run/cdi/pyvgpu.io-driver.json
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of `pyvgpu mirror`."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add(
        "--driver-root",
        metavar="DIR",
        default="/",
        help="mount point of the root file system that has the driver (/)",
    )
    add("--output", metavar="DIR", help="the folder for the mirror")
    add(
        "--volume-config",
        metavar="FILE",
        help="gpu-manager's volume.conf: which files, in which volumes",
    )
    add("--cdi", metavar="FILE", help="write a CDI specification of the mirror to FILE")
    add("--dry-run", action="store_true", help="show the contents of the mirror, and create none")
    add("--follow", action="store_true", help="keep running, and mirror each new driver")
    add("--json", action="store_true", help="print JSON; with --follow one line for each change")


def run(options: argparse.Namespace) -> int:
    """Create the mirror, or show it, or keep it up to date."""
    if options.dry_run and options.follow:
        raise errors.UsageError("--dry-run and --follow: must not both be given")
    if options.dry_run and options.cdi is not None:
        raise errors.UsageError("--dry-run and --cdi: must not both be given")
    for option in ("driver_root", "output", "volume_config", "cdi"):
        if getattr(options, option) == "":
            raise errors.UsageError(
                f"--{option.replace('_', '-')} '': must name a path, such as {OUTPUT}"
            )
    given = options.volume_config
    volumes = None if given is None else volume_conf.read(Path(given))
    finder = survey.RootFinder(Path(options.driver_root).absolute(), volumes)
    output = _output(volumes) if options.output is None else Path(options.output).absolute()
    specification = None if options.cdi is None else Path(options.cdi).absolute()
    if specification is not None:
        cdi.check_name(specification)
    mirror = node_mirror.NodeMirror(output, shim.shim_library(), specification)
    if options.dry_run:
        return _show(finder, mirror, as_json=options.json)
    act = _follow if options.follow else _make
    with mirror.remembering():
        return act(finder, mirror, as_json=options.json)


def _output(volumes: tuple[installation.ConfiguredVolume, ...] | None) -> Path:
    bases = {volume.base for volume in volumes or ()} or {PurePosixPath(OUTPUT)}
    if len(bases) > 1:
        raise errors.UsageError(
            "the volumes of --volume-config have several bases, "
            f"{' and '.join(sorted(map(str, bases)))}: "
            "name one folder for all of them with --output"
        )
    return Path(bases.pop())


def _make(finder: survey.RootFinder, mirror: node_mirror.NodeMirror, *, as_json: bool) -> int:
    try:
        found = finder.find()
        with progress.copying("copying the driver") as report:
            state = mirror.mirror(found, report)
    except errors.PyVgpuError as exc:
        mirror.mark(exc)
        raise
    removed: tuple[Path, ...] = ()
    try:
        removed = mirror.collect()
    except errors.PyVgpuError as exc:
        log.say(f"old trees stay where they are: {exc}")
    if as_json:
        print(json.dumps(_news(state, mirror, removed), indent=2))
    else:
        _report(state, mirror, removed)
    if state.specification:
        raise errors.UnavailableError(state.specification)
    return 0


def _show(finder: survey.RootFinder, mirror: node_mirror.NodeMirror, *, as_json: bool) -> int:
    found = finder.find()
    made = mirror_plan.plan_node(found, mirror.shim)
    if as_json:
        print(json.dumps(_document(found, made, mirror), indent=2))
    else:
        _draw(found, made)
    return 0


def _follow(finder: survey.RootFinder, mirror: node_mirror.NodeMirror, *, as_json: bool) -> int:
    last: node_mirror.MirrorState | None = None

    def report(news: driver_follower.News) -> None:
        nonlocal last
        if news.state == last and not news.removed:
            return
        if as_json:
            print(json.dumps(_news(news.state, mirror, news.removed)), flush=True)
        elif news.state == last:
            _tell_removed(news.removed)
        else:
            _report(news.state, mirror, news.removed)
            if news.state.specification:
                _say(news.state.specification)
        last = news.state

    with folder_watch.FolderWatch() as watched:
        follower = driver_follower.DriverFollower(finder, mirror, watched, report)
        with _stopped_by_signals(follower):
            follower.run()
    return 0


@contextlib.contextmanager
def _stopped_by_signals(follower: driver_follower.DriverFollower) -> Iterator[None]:
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, lambda *_: follower.stop()) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


def _news(
    state: node_mirror.MirrorState, mirror: node_mirror.NodeMirror, removed: tuple[Path, ...]
) -> dict[str, object]:
    """Return the state of the mirror as JSON."""
    return {
        "pyvgpu": pyvgpu.__version__,
        **dataclasses.asdict(state),
        "path": str(mirror.output / state.tree) if state.tree else None,
        "removed": [str(tree) for tree in removed],
    }


def _report(
    state: node_mirror.MirrorState, mirror: node_mirror.NodeMirror, removed: tuple[Path, ...]
) -> None:
    """Print the state of the mirror: one line, and one for each remark."""
    where = root.shown(mirror.output / state.tree) if state.tree else "no mirror"
    if state.driver is node_mirror.DriverState.PRESENT:
        _say(f"{where}: the mirror of driver {state.release}")
    else:
        kept = f"; {where} stays, of driver {state.release}" if state.tree else ""
        _say(f"the driver is {state.driver}: {state.reason}{kept}")
    for remark in state.remarks:
        _say(f"  {root.shown(remark)}")
    _tell_removed(removed)


def _tell_removed(removed: tuple[Path, ...]) -> None:
    for tree in removed:
        _say(f"{root.shown(tree)}: removed, no run uses it")


def _say(line: str) -> None:
    print(line, flush=True)


def _document(
    found: installation.Installation, made: mirror_plan.NodePlan, mirror: node_mirror.NodeMirror
) -> dict[str, object]:
    """Return the plan as JSON: links with their targets, files with their sources."""
    return {
        "pyvgpu": pyvgpu.__version__,
        "release": made.plan.release,
        "driver_root": str(found.root),
        "found": found.found_by,
        "output": str(mirror.output),
        "remarks": list(made.remarks),
        "entries": [{"path": entry.path, **_content(entry)} for entry in made.plan.entries],
    }


def _content(entry: mirror_plan.Entry) -> dict[str, object]:
    if isinstance(entry, mirror_plan.PlannedLink):
        return {"kind": "link", "target": entry.target}
    if isinstance(entry, mirror_plan.OtherName):
        return {"kind": "other name", "file": entry.file}
    return {"kind": "file", "source": str(entry.source), "shim": entry.ours}


def _draw(found: installation.Installation, made: mirror_plan.NodePlan) -> None:
    """Print the plan as a tree."""
    from rich import console, text, tree

    drawn = tree.Tree(
        text.Text(f"driver {made.plan.release}", style="bold").append(
            f", found {found.found_by}", "not bold dim"
        )
    )
    folders: dict[str, Tree] = {"": drawn}
    for folder in made.plan.folders:
        above, _, name = folder.rpartition("/")
        folders[folder] = folders[above].add(text.Text(f"{root.shown(name)}/", style="blue"))
    for entry in made.plan.entries:
        folder, _, name = entry.path.rpartition("/")
        folders[folder].add(text.Text(root.shown(name)).append(_origin(entry), "dim"))
    # Do not truncate lines to the terminal's width: they end with the source of the file.
    out = console.Console(highlight=False, soft_wrap=True, width=_WIDTH)
    out.print(drawn)
    for remark in made.remarks:
        out.print(text.Text(root.shown(remark)))


def _origin(entry: mirror_plan.Entry) -> str:
    if isinstance(entry, mirror_plan.PlannedLink):
        return f" → {root.shown(entry.target)}"
    if isinstance(entry, mirror_plan.OtherName):
        return f" = {entry.file.rpartition('/')[2]}"
    return "  the shim" if entry.ours else f"  {root.shown(entry.source)}"
