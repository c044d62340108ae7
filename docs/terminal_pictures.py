"""Take the pictures of a real terminal in docs/pictures, as SVG.

`make terminal-pictures`. `pyvgpu top`, while three runs share a simulated H100, and the end of
`pyvgpu demo --scenario oversubscribe`, each in a pseudo-terminal, whose screen becomes the
picture. A private mount namespace hides other runs of this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import itertools
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyte
from rich import _export_format, terminal_theme
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
PYVGPU = Path(sys.executable).parent / "pyvgpu"
SECONDS = 40.0  # of watching: the sparklines are full then
_INSIDE = "PYVGPU_PICTURE_NAMESPACE"
_FONT_FACES = re.compile(r"\s*@font-face \{\{.*?\}\}\n", re.DOTALL)  # load fonts from elsewhere
_TENANT = """\
import itertools, sys, time

sys.path.insert(0, {programs!r})
import gpu

device = gpu.Device()
device.allocate({mib} << 20)
for step in itertools.count():
    device.compute(20)
    time.sleep({pause} * (step % 100 >= {busy}))
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """One run: its options, its program's arguments, and how much it uses."""

    name: str
    options: str
    arguments: str
    mib: int
    busy: int = 100  # of each 100 steps, those without a pause
    pause: float = 0.0  # seconds, after each of the others


TENANTS = (
    Tenant("train", "--vcore 50 --vmemory 40GiB", "--epochs 30", 37_300),
    Tenant(
        "serve",
        "--vcore 30 --vmemory 24GiB --policy elastic --vcore-limit 60",
        "--port 8000",
        19_200,
        55,
        0.1,
    ),
    Tenant("notebook", "--vcore 10 --vmemory 8GiB", "--port 8888", 4_700, 20, 0.4),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command of `pyvgpu`, and the terminal in which it runs."""

    name: str  # of the picture; of which every id in it is made, else a hash of the content
    arguments: tuple[str, ...]
    columns: int
    lines: int
    seconds: float  # until the picture is taken, unless the command has ended


TOP = Command("top", ("top",), 136, 17, SECONDS)
DEMO = Command("demo-oversubscribe", ("demo", "--scenario", "oversubscribe"), 100, 48, 120.0)


def main() -> None:
    """Take the pictures in a namespace of our own."""
    if _INSIDE not in os.environ:
        mount = "{ [ ! -d /tmp/pyvgpu ] || mount -t tmpfs tmpfs /tmp/pyvgpu; }"
        script = f'mount -t tmpfs tmpfs /run && {mount} && exec "$@"'
        namespace = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
        os.environ[_INSIDE] = "1"
        own = ["sh", "-c", script, "sh", sys.executable, str(Path(__file__).resolve())]
        os.execvp("unshare", ["unshare", *namespace, *own])
    with tempfile.TemporaryDirectory() as folder, runs(Path(folder)):
        take(TOP)
    take(DEMO)


def take(command: Command) -> None:
    """Write the picture of *command*."""
    (PICTURES / f"{command.name}.svg").write_text(drawn(command, watch(command)))


@contextlib.contextmanager
def runs(folder: Path) -> Iterator[None]:
    """Keep the three runs active."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    os.environ["PYVGPU_SIMULATED_MACHINES"] = str(folder)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with contextlib.ExitStack() as stack:
        for tenant in TENANTS:
            text = _TENANT.format(
                programs=str(ROOT / "examples" / "programs"),
                mib=tenant.mib,
                busy=tenant.busy,
                pause=tenant.pause,
            )
            (folder / f"{tenant.name}.py").write_text(text)
            options = ["--simulate", "h100", "--name", tenant.name, *tenant.options.split()]
            command = ["python", f"{tenant.name}.py", *tenant.arguments.split()]
            process = stack.enter_context(
                subprocess.Popen([PYVGPU, "run", *options, "--", *command], cwd=folder)
            )
            stack.callback(process.terminate)
            time.sleep(1)  # so that they are listed in this order
        yield


def watch(command: Command) -> pyte.Screen:
    """Return the screen of a terminal in which *command* has run for its time, or to its end."""
    screen = pyte.Screen(command.columns, command.lines)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if not pid:
        environment = {**os.environ, "TERM": "xterm-256color"}
        environment.pop("NO_COLOR", None)
        time.sleep(1)  # for the size of the terminal to be set
        os.execve(PYVGPU, [PYVGPU, *command.arguments], environment)
    size = struct.pack("HHHH", command.lines, command.columns, 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    end = time.monotonic() + command.seconds
    with contextlib.suppress(OSError):  # it has ended
        while time.monotonic() < end:
            if select.select([terminal], [], [], 0.5)[0]:
                stream.feed(os.read(terminal, 1 << 16))
    picture = [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]
    with contextlib.suppress(OSError):
        os.write(terminal, b"q")
        while os.read(terminal, 1 << 16):
            pass
    os.close(terminal)
    os.waitpid(pid, 0)
    for y, line in enumerate(picture):
        for x, cell in enumerate(line):
            screen.buffer[y][x] = cell
    return screen


def drawn(command: Command, screen: pyte.Screen) -> str:
    """Return *screen* as an SVG that loads nothing from elsewhere."""
    console = Console(
        width=command.columns,
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    lines = [_line(screen, y) for y in range(command.lines)]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    form = _FONT_FACES.sub("", _export_format.CONSOLE_SVG_FORMAT)
    form = form.replace("Fira Code", "ui-monospace")
    theme = terminal_theme.MONOKAI
    return console.export_svg(
        title=" ".join(("pyvgpu", *command.arguments)),
        theme=theme,
        code_format=form,
        unique_id=f"pyvgpu-{command.name}",
    )


def _line(screen: pyte.Screen, y: int) -> Text:
    text = Text()
    cells = (screen.buffer[y][x] for x in range(screen.columns))
    for style, alike in itertools.groupby(cells, _style):
        text.append("".join(cell.data for cell in alike), style)
    return text


def _style(cell: pyte.screens.Char) -> str:
    """Return the style of a cell in rich's words."""
    colour = cell.fg.replace("brown", "yellow").replace("default", "")
    if re.fullmatch(r"[0-9a-f]{6}", colour):
        colour = f"#{colour}"
    return " ".join(filter(None, ("bold" if cell.bold else "", colour)))


if __name__ == "__main__":
    main()
