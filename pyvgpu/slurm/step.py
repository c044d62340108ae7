"""The program that the SPANK plugin runs for each step, as root, in slurmstepd's context.

Standard input is a pipe that reaches EOF when the step's slurmstepd has ended. It prints the lines
that the plugin applies to each task, and then `ready`; or `untouched` if the step has no shards
and its job no quota; or `error TEXT`, and then the step fails.

    python -Im pyvgpu.slurm.step --job=7 --user=1000 --shards=4 --gpus=0
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

from pyvgpu import errors
from pyvgpu.slurm import job_holder, shards, step_cgroups

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLURMD_SECONDS = 30
_MOST_FILES = 1 << 20  # that slurmstepd may have open
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/slurm/sbin")  # where slurmd may be, beside PATH


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise errors.UsageError(f"plugstack.conf: {message}")


def main(arguments: Sequence[str]) -> None:
    """Print the answer for one step."""
    os.umask(0o022)
    os.closerange(3, _MOST_FILES)  # slurmstepd's own
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        lines = _enter(arguments)
        answer = ["untouched"] if lines is None else [*lines, "ready"]
    except (errors.PyVgpuError, OSError) as exc:
        answer = [_error(str(exc))]
    except Exception as exc:
        answer = [_error(f"internal error: {exc!r}")]
    print("\n".join(answer), flush=True)


def _error(text: str) -> str:
    return "error " + " ".join(text.split())


def _enter(arguments: Sequence[str]) -> list[str] | None:
    options = _parse(arguments)
    request = shards.parse_request(options.shards, options.gpus, options.vcore, options.vmemory)
    settings = job_holder.JobSettings(
        options.job,
        options.user,
        options.simulate,
        options.driver_libraries,
        options.total,
    )
    with job_holder.locked():
        lines = job_holder.join(settings.job, request, 0)
        if lines is not None:
            return lines
        if request.shards is None or request.minor is None:
            if request.explicit:
                raise errors.UsageError(
                    "--vcore and --vmemory: the job has no shards, so must be given with them, "
                    "such as --gres=shard:4 --vmemory=8GiB"
                )
            return None
        total = settings.total or shards.of_device(_ask_slurmd(), request.minor)
        held = shards.HeldShards(
            request.shards, total, request.minor, request.vcore, request.vmemory
        )
        _start_holder(settings, held)
        return job_holder.join(settings.job, request, 0)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(allow_abbrev=False)
    for name in ("--job", "--user"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--shards", "--gpus", "--vcore", "--vmemory"):
        parser.add_argument(name)
    # Arguments of the plugin in plugstack.conf.
    parser.add_argument("--shards-per-gpu", dest="total", type=_count)
    parser.add_argument("--simulate")
    parser.add_argument("--driver-libraries")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= shards.MOST_SHARDS:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of shards, such as 8")
    return int(text)


def _ask_slurmd() -> dict[int, int]:
    """Return the shards of this node's GPUs, which slurmd reads from gres.conf."""
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), *_FOLDERS])
    program = shutil.which("slurmd", path=folders)
    if program is None:
        raise errors.UnavailableError(
            f"slurmd is in none of {folders}: plugstack.conf must have shards-per-gpu=8"
        )
    try:
        ran = subprocess.run(
            [program, "-G"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SLURMD_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise errors.UnavailableError(f"{program} -G: {errors.reason_of(exc)}") from exc
    return shards.parse_gres(ran.stdout.decode("utf-8", "replace"))


def _start_holder(settings: job_holder.JobSettings, held: shards.HeldShards) -> None:
    """Start the job's holder as a daemon; return once it holds the quota, or raise why not."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        if os.fork():
            os._exit(0)
        os.close(reading)
        _become_holder(settings, held, writing)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
        failure = pipe.read()
    if failure:
        raise errors.UnavailableError(failure)


def _become_holder(
    settings: job_holder.JobSettings, held: shards.HeldShards, pipe: int
) -> NoReturn:
    """Hold the quota until the job's steps have ended; a failure before that goes to *pipe*."""
    ready = open(pipe, "wb", buffering=0)  # noqa: SIM115 - a descriptor, closed when held
    try:
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        messages = os.open(job_holder.FOLDER / job_holder.LOG_FILE, flags, 0o600)
        for source, target in ((nothing, 0), (nothing, 1), (messages, 2)):
            os.dup2(source, target)
        os.closerange(3, pipe)
        os.closerange(pipe + 1, _MOST_FILES)
        step_cgroups.leave()
        job_holder.hold(settings, held, ready)
    except BaseException as exc:
        text = str(exc) if isinstance(exc, errors.PyVgpuError | OSError) else repr(exc)
        print(f"job {settings.job}: {text}", file=sys.stderr, flush=True)
        if not ready.closed:
            ready.write(text.encode())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
