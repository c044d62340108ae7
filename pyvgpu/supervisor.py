"""Run the tenant's program: its signals, its end, and nothing left of it.

The program stays in our process group, so that the terminal's own signals reach it as they
reach us, once. What was sent to us alone is passed on. We stop when it stops, we end as it
ends. It dies with us.
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

from pyvgpu import cgroups, errors, log, namespace

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
# What the child writes to us before it ends, if it does not come to exec.
_NO_NAMESPACE, _NO_EXEC, _NO_CGROUP = b"n", b"x", b"c"

NOT_EXECUTABLE, NOT_FOUND = 126, 127


class NotStartedError(errors.PyVgpuError):
    """The program cannot be executed."""

    exit_code = NOT_EXECUTABLE


class CgroupError(errors.PyVgpuError):
    """The program cannot be put into its cgroup, and was not started."""


class NotFoundError(NotStartedError):
    """There is no such program."""

    exit_code = NOT_FOUND


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """What to execute, and where."""

    path: str
    arguments: list[str]  # the first is the name it was called by
    environment: Mapping[str, str]
    overlays: Sequence[namespace.Overlay] = ()
    cgroup: Path | None = None  # to be in


@dataclasses.dataclass(frozen=True, slots=True)
class Inherited:
    """What we were started with and changed, for the program to have."""

    mask: set[signal.Signals | int]
    ignored: frozenset[int]


def find_program(command: str, environment: Mapping[str, str]) -> str:
    """Return the path of *command*, as exec would find it."""
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
            if exc.errno == errno.EACCES and os.sep in command:  # else as a shell: not there
                reason = errno.EACCES
            continue
        if stat.S_ISREG(mode) and os.access(candidate, os.X_OK):
            return candidate
        if not stat.S_ISDIR(mode):
            reason = errno.EACCES
        elif os.sep in command:
            reason = errno.EISDIR
    text = f"{command}: {os.strerror(reason).lower()}"
    if reason == errno.ENOENT:
        raise NotFoundError(text)
    raise NotStartedError(text)


@contextlib.contextmanager
def signals_held() -> Iterator[Inherited]:
    """Let no signal end us in here, so that what was made is also removed."""
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    ignored = _ignored_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, waitpid would learn nothing
    try:
        yield Inherited(before, ignored)
    finally:
        for number in watched:
            while number in signal.sigpending():
                signal.sigwaitinfo({number})
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def supervise(
    program: Program, inherited: Inherited, started: Callable[[], None] = lambda: None
) -> int:
    """Run *program* to its end; return its status as os.waitpid gives it. CgroupError.

    Once nothing is forked any more *started* is called, which may start threads.
    """
    try:
        child = _start(program, inherited)
    except namespace.NamespaceError as exc:
        log.say(
            f"no private mount namespace here ({exc}): a program that opens the driver by "
            "an absolute path, or drops its environment, is not held to the quota"
        )
        child = _start(dataclasses.replace(program, overlays=()), inherited)
    started()
    return _watch(child)


def end_as(status: int) -> int:
    """Return the exit code for *status*; after a signal, die of the same one instead."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed when we started
        stream.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's own core is the one to read
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # a signal whose default is not to end us


def _start(program: Program, inherited: Inherited) -> int:
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
        raise namespace.NamespaceError(text)
    if kind == _NO_CGROUP:
        raise CgroupError(text)
    number = int(text)
    failure = NotFoundError if number in (errno.ENOENT, errno.ENOTDIR) else NotStartedError
    raise failure(f"{program.arguments[0]}: {os.strerror(number).lower()}")


def _become(program: Program, inherited: Inherited, supervisor: int, report: int) -> NoReturn:
    """In the child: turn into the program, or report why not. Never returns."""
    try:
        _join(program.cgroup)
        if program.overlays:
            namespace.enter(program.overlays)
        _die_with(supervisor)
        _restore(inherited)
        _execute(program)
    except namespace.NamespaceError as exc:
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
    """Have the kernel kill us when *supervisor* dies; it may have died before we asked."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(NOT_EXECUTABLE)


def _restore(inherited: Inherited) -> None:
    """Undo what Python and we did to signals; an exec keeps the mask and what is ignored."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        wanted = signal.SIG_IGN if number in inherited.ignored else signal.SIG_DFL
        if signal.getsignal(number) is not wanted:
            signal.signal(number, wanted)
    signal.pthread_sigmask(signal.SIG_SETMASK, inherited.mask)


def _execute(program: Program) -> NoReturn:
    try:
        os.execve(program.path, program.arguments, program.environment)  # noqa: S606
    except OSError as exc:
        if exc.errno != errno.ENOEXEC:
            raise
        # As execvp(3) and every shell do: a script without a first line is the shell's.
        shell = ["/bin/sh", program.path, *program.arguments[1:]]
        os.execve(shell[0], shell, program.environment)  # noqa: S606


def _watch(child: int) -> int:
    """Pass signals on until *child* has ended; return its status."""
    while True:
        info = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD:
            _forward(child, info)
            continue
        # Any child: as the first process of a container we inherit those of others.
        while (changed := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
            pid, status = changed
            if pid == child and os.WIFSTOPPED(status):
                _stop_as(status)
            elif pid == child:
                return status


def _forward(child: int, info: signal.struct_siginfo) -> None:
    """Pass on what somebody sent to us; the kernel's own (Ctrl-C) the child had with us."""
    if info.si_code <= 0 and info.si_pid != child:
        with contextlib.suppress(PermissionError):  # it has changed its user
            os.kill(child, info.si_signo)


def _stop_as(status: int) -> None:
    """Stop when the terminal stopped the child (Ctrl-Z), so that the shell takes over.

    Who stops the child alone, by SIGSTOP, will continue the child alone: not our affair.
    """
    if os.WSTOPSIG(status) in _STOPS_OF_THE_TERMINAL:
        os.kill(os.getpid(), signal.SIGSTOP)


def _ignored_signals() -> frozenset[int]:
    """Return what was ignored when we started; Python itself ignores two that were not."""
    mine = {signal.SIGPIPE, signal.SIGXFSZ}
    return frozenset(
        number
        for number in signal.valid_signals()
        if number not in mine and signal.getsignal(number) is signal.SIG_IGN
    )
