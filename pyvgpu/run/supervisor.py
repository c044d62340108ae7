"""Run the tenant's program as a child: forward signals, mirror its stops and its exit status.

The program stays in our process group, so that each signal of the terminal reaches it once, like
us. Signals that were sent to us alone are forwarded. We stop when it stops, and end with the same
status or signal. The program dies with us.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import os
import resource
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pyvgpu import errors, log
from pyvgpu.machine import cgroups, reservations
from pyvgpu.run import mount_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_STOPS_OF_THE_TERMINAL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGWINCH,
    *_STOPS_OF_THE_TERMINAL,
)
_DEADLY = _FORWARDED[:6]  # that end a program by default
# The child's error report to us, if it fails before exec.
_NO_NAMESPACE, _NO_EXEC, _NO_CGROUP = b"n", b"x", b"c"

NOT_EXECUTABLE, NOT_FOUND = 126, 127


class NotStartedError(errors.PyVgpuError):
    """The program cannot be executed."""

    exit_code = NOT_EXECUTABLE


class CgroupError(errors.PyVgpuError):
    """The program could not be put into its cgroup, and was not started."""


class NotFoundError(NotStartedError):
    """There is no such program."""

    exit_code = NOT_FOUND


@dataclasses.dataclass(frozen=True, slots=True)
class RunProgram:
    """The program to execute, with its surroundings."""

    path: str
    arguments: list[str]  # argv, with its name
    environment: Mapping[str, str]
    overlays: Sequence[mount_namespace.Overlay] = ()
    cgroup: Path | None = None  # to join


@dataclasses.dataclass(frozen=True, slots=True)
class Inherited:
    """The signal state that we were started with, to be restored for the program."""

    mask: set[signal.Signals | int]
    ignored: frozenset[int]


def find_program(command: str, environment: Mapping[str, str]) -> str:
    """Return the path of *command*, searched for like execvp(3)."""
    if os.sep in command:
        candidates = [command]
    else:
        path = environment.get("PATH", os.defpath)
        candidates = [f"{folder or '.'}/{command}" for folder in path.split(os.pathsep)]
    reason = errno.ENOENT
    for candidate in candidates:
        try:
            mode = Path(candidate).stat().st_mode
        except OSError as exc:
            if exc.errno == errno.EACCES and os.sep in command:  # else "not found", as in a shell
                reason = errno.EACCES
            continue
        if stat.S_ISREG(mode) and os.access(candidate, os.X_OK):
            return candidate
        if not stat.S_ISDIR(mode):
            reason = errno.EACCES
        elif os.sep in command:
            reason = errno.EISDIR
    if not command:
        raise NotFoundError("COMMAND '': must name a program, such as python")
    text = f"{command}: {os.strerror(reason).lower()}"
    if reason == errno.ENOENT:
        raise NotFoundError(f"{text}{_meant(command)}")
    raise NotStartedError(f"{text}{_meant(command) if reason == errno.EACCES else ''}")


def _meant(command: str) -> str:
    """Return how to start a *command* that is a script, or a whole line in quotes."""
    file = Path(command)
    with contextlib.suppress(OSError, ValueError):
        if file.is_file():
            if file.suffix == ".py":
                return f"; did you mean python {command}?"
            if os.access(file, os.X_OK):
                return f"; did you mean ./{command}?"
            return f"; `chmod +x {command}` makes a program executable"
    if len(words := command.split()) > 1:
        return f"; did you mean -- {' '.join(words)}, without quotes?"
    return ""


@contextlib.contextmanager
def signals_held() -> Iterator[Inherited]:
    """Block signals that would end us in this context, so that clean-up always runs."""
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    ignored = _ignored_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, waitpid would get no status
    try:
        yield Inherited(before, ignored)
    finally:
        for number in watched:
            while number in signal.sigpending():
                signal.sigwaitinfo({number})
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def supervise(
    program: RunProgram,
    inherited: Inherited,
    started: Callable[[], None] = lambda: None,
    before_kill: Callable[[int], None] = lambda _: None,
) -> int:
    """Run *program* to its end; return its status, as of os.waitpid. CgroupError.

    After the last fork *started* is called, which may start threads. *before_kill* is called with
    the program's pid before a forwarded signal that kills it.
    """
    try:
        child = _start(program, inherited)
    except mount_namespace.NamespaceError as exc:
        log.say(
            f"cannot use a private mount namespace ({exc}): a program that opens the driver by "
            "an absolute path, or drops its environment, is not held to the quota"
        )
        child = _start(dataclasses.replace(program, overlays=()), inherited)
    started()
    return _watch(child, before_kill)


def end_as(status: int) -> int:
    """Return the exit code for *status*; if it is a signal, kill ourselves with it instead."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed when we started
        stream.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # do not overwrite the program's own core
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # the signal's default action does not end us


def _start(program: RunProgram, inherited: Inherited) -> int:
    """Fork and exec; return the child's pid, or raise what it reported."""
    reading, writing = os.pipe()
    supervisor = os.getpid()
    child = os.fork()
    if not child:
        os.close(reading)
        _become(program, inherited, supervisor, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor
        report = pipe.read()
    if not report:
        return child
    os.waitpid(child, 0)
    kind, text = report[:1], report[1:].decode("utf-8", "replace")
    if kind == _NO_NAMESPACE:
        raise mount_namespace.NamespaceError(text)
    if kind == _NO_CGROUP:
        raise CgroupError(text)
    number = int(text)
    failure = NotFoundError if number in (errno.ENOENT, errno.ENOTDIR) else NotStartedError
    raise failure(f"{program.arguments[0]}: {os.strerror(number).lower()}")


def _become(program: RunProgram, inherited: Inherited, supervisor: int, report: int) -> NoReturn:
    """In the child: exec the program, or report the error. Never returns."""
    try:
        _join(program.cgroup)
        if program.overlays:
            mount_namespace.enter(program.overlays)
        _die_with(supervisor)
        _restore(inherited)
        _execute(program)
    except mount_namespace.NamespaceError as exc:
        os.write(report, _NO_NAMESPACE + str(exc).encode())
    except CgroupError as exc:
        os.write(report, _NO_CGROUP + str(exc).encode())
    except OSError as exc:
        os.write(report, _NO_EXEC + str(exc.errno).encode())
    finally:
        os._exit(NOT_EXECUTABLE)


def _join(cgroup: Path | None) -> None:
    if cgroup is not None:
        try:
            cgroups.join(cgroup)
        except OSError as exc:
            raise CgroupError(f"{cgroup}: cannot be joined: {exc.strerror}") from exc


def _die_with(supervisor: int) -> None:
    """Have the kernel kill us when *supervisor* dies; exit if it is already dead."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(NOT_EXECUTABLE)


def _restore(inherited: Inherited) -> None:
    """Restore signals changed by Python and us; exec keeps the mask and ignored signals."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        wanted = signal.SIG_IGN if number in inherited.ignored else signal.SIG_DFL
        if signal.getsignal(number) is not wanted:
            signal.signal(number, wanted)
    signal.pthread_sigmask(signal.SIG_SETMASK, inherited.mask)


def _execute(program: RunProgram) -> NoReturn:
    try:
        os.execve(program.path, program.arguments, program.environment)  # noqa: S606
    except OSError as exc:
        if exc.errno != errno.ENOEXEC:
            raise
        # Like execvp(3) and every shell: run a script without #! by the shell.
        shell = ["/bin/sh", program.path, *program.arguments[1:]]
        os.execve(shell[0], shell, program.environment)  # noqa: S606


def _watch(child: int, before_kill: Callable[[int], None]) -> int:
    """Forward signals until *child* has ended; return its status."""
    while True:
        info = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD:
            _forward(child, info, before_kill)
            continue
        # Any child: as the init process of a container we reap orphans.
        while (changed := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            pid, status = changed
            if pid == child and os.WIFSTOPPED(status):
                _stop_as(status)
            elif pid == child:
                return status


def _forward(child: int, info: signal.struct_siginfo, before_kill: Callable[[int], None]) -> None:
    """Forward a signal that a process sent to us; the kernel's own (Ctrl-C) reach the child."""
    if info.si_code <= 0 and info.si_pid != child:
        if info.si_signo in _DEADLY and _dies_of(child, info.si_signo):
            before_kill(child)
        with contextlib.suppress(PermissionError):  # the child has changed its user
            os.kill(child, info.si_signo)


def _dies_of(child: int, number: int) -> bool:
    """Return whether the child neither handles nor ignores the signal *number*."""
    with contextlib.suppress(OSError, ValueError):
        fields = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{child}/status").read_text(encoding="utf-8").splitlines()
        )
        taken = int(fields["SigCgt"], 16) | int(fields["SigIgn"], 16)
        return not taken >> (number - 1) & 1
    return False


def _stop_as(status: int) -> None:
    """Stop when the terminal stopped the child (Ctrl-Z), so that the shell takes over.

    A process that stops the child alone, by SIGSTOP, will continue it alone: ignore that.
    """
    if os.WSTOPSIG(status) in _STOPS_OF_THE_TERMINAL:
        with reservations.unlocked():
            os.kill(os.getpid(), signal.SIGSTOP)


def _ignored_signals() -> frozenset[int]:
    """Return the signals ignored when we started; Python itself ignores two more."""
    mine = {signal.SIGPIPE, signal.SIGXFSZ}
    return frozenset(
        number
        for number in signal.valid_signals()
        if number not in mine and signal.getsignal(number) is signal.SIG_IGN
    )
