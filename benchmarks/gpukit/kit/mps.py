"""The kit's own MPS daemon: started, and stopped however this process ends.

The daemon is the child of a guard, ``python -m kit.mps FOLDER``, in a session of its own. The
guard ends the daemon when its standard input ends, so a stage that is killed leaves no daemon
behind. A daemon that runs already is never spoken to, and no compute mode is changed.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from kit import cuda, finding

CONTROL = "nvidia-cuda-mps-control"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"
MACHINE_VARIABLE = "PYVGPU_SIMULATED_MACHINE"
START_SECONDS, QUIT_SECONDS = 10, 8
ZOMBIE = "Z"  # in /proc/PID/stat: ended, and not reaped yet


class UnavailableError(Exception):
    """No daemon of our own can be had here; the text says why."""


def running(processes=pathlib.Path("/proc")):
    """Return the pids of MPS daemons and servers of anyone that are seen in *processes*."""
    found = []
    for file in processes.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = file.read_text(encoding="utf-8", errors="replace").rpartition(")")
            name = before.partition("(")[2]
            if name.startswith("nvidia-cuda-mps") and after.split()[0] != ZOMBIE:
                found.append(int(file.parent.name))
    return sorted(found)


def program():
    """Return the path of the control program, None if there is none.

    For a simulated device it is the simulator's: NVIDIA's knows no such device.
    """
    if not cuda.simulated():
        return finding.program(CONTROL)
    from pyvgpu import shim

    path = shim.simulator_libraries() / CONTROL
    return str(path) if path.exists() else None


def seen():
    """Return the pids of MPS daemons and servers that can be of the device that is measured."""
    return [pid for pid in running() if not cuda.simulated() or is_of_this_machine(pid)]


def is_of_this_machine(pid):
    """Return whether a process is of the simulated machine that is measured."""
    with contextlib.suppress(OSError):
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        mine = f"{MACHINE_VARIABLE}={os.environ.get(MACHINE_VARIABLE)}".encode()
        return mine in environment
    return False


def obstacle():
    """Return why no daemon is to be started here, None if nothing speaks against it."""
    if program() is None:
        return f"no program {CONTROL} in PATH or the usual folders"
    if os.environ.get(PIPE_VARIABLE):
        return f"{PIPE_VARIABLE}={os.environ[PIPE_VARIABLE]} is set: that daemon is left alone"
    pids = seen()
    if pids:
        return f"MPS runs here already (pid {', '.join(map(str, pids))}): it is left alone"
    return None


@contextlib.contextmanager
def daemon():
    """Yield the variables by which programs find a daemon of our own; UnavailableError without."""
    reason = obstacle()
    if reason:
        raise UnavailableError(reason)
    folder = tempfile.mkdtemp(prefix="kit-mps-")
    guard = subprocess.Popen(
        [sys.executable, "-m", "kit.mps", folder],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said = guard.stdout.readline().strip()
        if said != "ready":
            raise UnavailableError(said or "the daemon did not start")
        yield variables(folder)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.communicate("", 3 * QUIT_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def variables(folder):
    return {PIPE_VARIABLE: f"{folder}/pipe", LOG_VARIABLE: f"{folder}/log"}


def ask(question, environment):
    """Return what the daemon answers to a command; an empty text if it does not."""
    try:
        done = subprocess.run(
            [program()], input=f"{question}\n", capture_output=True, text=True,
            timeout=QUIT_SECONDS, check=False, env={**os.environ, **dict(environment)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""


def guard(folder):
    """Run the daemon until standard input ends; then end it, and its servers."""
    environment = variables(folder)
    for path in environment.values():
        pathlib.Path(path).mkdir()
    log = pathlib.Path(folder) / "daemon.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [program(), "-f"], env={**os.environ, **environment},
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    control = pathlib.Path(environment[PIPE_VARIABLE]) / "control"
    cuda.until(lambda: control.exists() or process.poll() is not None, START_SECONDS)
    if control.exists() and process.poll() is None:
        print("ready", flush=True)
        sys.stdin.read()
    else:
        said = " ".join(log.read_text(errors="replace").split())[-300:]
        print(f"{CONTROL} -f did not start: {said or f'exit code {process.poll()}'}", flush=True)
    end(process, environment)
    shutil.rmtree(folder, ignore_errors=True)  # the stage may have been killed


def end(process, environment):
    servers = [int(word) for word in ask("get_server_list", environment).split() if word.isdigit()]
    ask("quit -t 2", environment)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(QUIT_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pid in set(servers) & set(running()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    # The kernel first frees what a killed server holds on the device.
    cuda.until(lambda: not set(servers) & set(running()), QUIT_SECONDS)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    guard(sys.argv[1])
