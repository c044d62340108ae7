"""A virtual machine that QEMU emulates in software, with QEMU's guest agent and systemd in it.

Its network interface is the tap device tap0 of this process's network namespace. Commands in the
machine go through the guest agent, which needs no network.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

from waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BOOT_SECONDS = 600  # the most that a boot takes, on busy cores
_ANSWER_SECONDS = 60
_LINES = 60  # of the console, and of the journal, in messages of failed tests
_OPTIONS = "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off"
_AGENT, _MONITOR, _CONSOLE = "agent.sock", "monitor.sock", "console"
_UNITS = ("kubelet", "containerd", "images")


class Machine:
    """The machine whose root file system is *disk*, which the script `disk` of e2e/vm wrote."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self._folder = disk.parent
        self._serial = itertools.count(time.time_ns())
        self._console = self._folder / _CONSOLE
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the machine, and wait until it answers."""
        for name in (_AGENT, _MONITOR, _CONSOLE):
            (self._folder / name).unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"),
                # /dev/kvm may exist and yet not work.
                *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3G"),
                *("-serial", f"file:{self._console}"),
                *("-kernel", f"{self._disk}.kernel", "-initrd", f"{self._disk}.initrd"),
                *("-append", _OPTIONS),
                *("-drive", f"file={self._disk},format=raw,if=virtio,cache=unsafe"),
                *("-netdev", "tap,id=net,ifname=tap0,script=no,downscript=no"),
                *("-device", "virtio-net-pci,netdev=net,romfile="),
                *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
                *("-chardev", f"socket,id=agent,path={self._folder / _AGENT},server=on,wait=off"),
                *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
                *("-qmp", f"unix:{self._folder / _MONITOR},server=on,wait=off"),
            ]
        )
        self._until_booted("")

    def stop(self) -> None:
        """End QEMU; the disk stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def run(self, *command: str, seconds: int = BOOT_SECONDS) -> str:
        """Run a command in the machine, which must succeed; return its output."""
        started = self._ask(
            "guest-exec", path=command[0], arg=list(command[1:]), **{"capture-output": True}
        )
        end = time.monotonic() + seconds
        while not (done := self._ask("guest-exec-status", pid=started["pid"]))["exited"]:
            assert time.monotonic() < end, f"{command}: still runs after {seconds} s"
            time.sleep(0.1)
        said, errors = (
            base64.b64decode(done.get(key, "")).decode() for key in ("out-data", "err-data")
        )
        assert done.get("exitcode") == 0, f"{command}: {done.get('exitcode')} {said}{errors}"
        return said

    def shell(self, script: str) -> str:
        """Run a shell script in the machine, which must succeed; return its output."""
        return self.run("/bin/sh", "-euc", script)

    def read(self, path: str) -> bytes:
        """Return the content of a file of the machine."""
        return base64.b64decode(self.run("/usr/bin/base64", path))

    def boot_id(self) -> str:
        """Return the identity of the current boot; empty if the machine does not answer."""
        with contextlib.suppress(OSError, AssertionError, ValueError):
            return self.run("/bin/cat", "/proc/sys/kernel/random/boot_id", seconds=10)
        return ""

    def reboot(self) -> None:
        """Let systemd reboot the machine; return when it answers again."""
        before = self.boot_id()
        self.run("/bin/systemctl", "reboot", "--no-block")
        self._until_booted(before)

    def reset(self) -> None:
        """Reset the machine at once, as a loss of power does; return when it answers again."""
        before = self.boot_id()
        with self._connected(_MONITOR) as file:
            file.readline()  # the greeting
            for command in ("qmp_capabilities", "system_reset"):
                _exchange(file, {"execute": command})
        self._until_booted(before)

    def story(self) -> str:
        """Return the end of the console and of the services' journals, for failed tests."""
        lines = []
        with contextlib.suppress(FileNotFoundError):
            lines = self._console.read_text(errors="replace").splitlines()
        said = ["--- console", *[line for line in lines if line.strip()][-_LINES:]]
        for unit in _UNITS:
            said.append(f"--- journal of {unit}")
            try:
                said.append(
                    self.run("/bin/journalctl", "--boot", f"--unit={unit}", f"--lines={_LINES}")
                )
            except (OSError, AssertionError, ValueError) as exc:
                said.append(f"the machine does not answer: {exc!r}")
        return "\n".join(said)

    def _until_booted(self, before: str) -> None:
        """Wait until the machine answers in another boot than *before*."""

        def is_up() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"QEMU ended with {self._process.returncode}"
            return self.boot_id() not in ("", before)

        wait_until(is_up, BOOT_SECONDS, self.story)

    @contextlib.contextmanager
    def _connected(self, name: str) -> Iterator[Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(self._folder / name))
            with connection.makefile("rwb") as file:
                yield file

    def _ask(self, command: str, **arguments: Any) -> Any:
        """Call the guest agent; OSError or ValueError if it does not answer."""
        with self._connected(_AGENT) as file:
            # Answers to requests of an earlier connection may come first.
            serial = next(self._serial)
            _send(file, {"execute": "guest-sync", "arguments": {"id": serial}})
            while json.loads(file.readline()).get("return") != serial:
                pass
            return _exchange(file, {"execute": command, "arguments": arguments})


def _send(file: Any, request: dict[str, Any]) -> None:
    file.write(json.dumps(request).encode() + b"\n")
    file.flush()


def _exchange(file: Any, request: dict[str, Any]) -> Any:
    _send(file, request)
    while True:
        answer = json.loads(file.readline())
        assert "error" not in answer, f"{request}: {answer}"
        if "return" in answer:
            return answer["return"]
