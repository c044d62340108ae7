"""The clock that the arbiter keeps for a run: from before the program starts to the end."""

import json

from waiting import wait_until

from pyvgpu._region import ffi

SHOW = (
    "import json, os, pathlib, sys, time\n"
    "region = pathlib.Path(os.environ['LD_LIBRARY_PATH'].split(':')[0]).parent / 'region'\n"
    "clock = region / 'clock.0'\n"
    "deadline = time.monotonic() + 120\n"
    "while len(sys.argv) > 1 and not clock.exists() and time.monotonic() < deadline:\n"
    "    time.sleep(0.01)\n"
    "print(json.dumps([clock.is_symlink(), clock.exists() and clock.stat().st_size]))\n"
)


def ask(runner, *options, wait=("wait",)):
    ran = runner(*options, "--vmemory", "2GiB", "python3", "-c", SHOW, *wait)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), ran.stderr


def test_program_with_a_vcore_quota_has_a_clock(runner):
    shown, said = ask(runner, "--vcore", "10")
    assert shown == [True, ffi.sizeof("struct clock_file")]
    assert said == ""


def test_run_removes_its_clock(runner):
    with runner.started("--vcore", "5", "--vmemory", "2GiB", "sh", "-c", "echo; read x") as run:
        run.stdout.readline()
        (tree,) = runner.trees()
        clock = (tree / "region" / "clock.0").readlink()
        wait_until(clock.exists)
        run.communicate("\n", timeout=60)
    wait_until(lambda: not clock.exists())
