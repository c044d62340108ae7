"""Slurm's own programs, the plugin and the shim, on two simulated H100 with eight shards each."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import rights
import waiting

from pyvgpu import quantity, shim
from pyvgpu.simulation import simulator

pytestmark = [pytest.mark.slurm, rights.needs_mounts, rights.needs_namespace]

PYVGPU = Path(sys.executable).parent / "pyvgpu"
LIBCUDA = "libcuda.so.1"
GIB = 1 << 30
OUT_OF_MEMORY = 2
NO_DEVICE = 100


@pytest.fixture(autouse=True)
def left_clean(slurm):
    """Each test leaves an idle node without runs, sockets and trees."""
    yield
    slurm.run("scancel", "--state=RUNNING", "--user", "nobody")  # of a test that failed
    waiting.wait_until(slurm.is_clean, found=lambda: slurm.run(PYVGPU, "ps", user=0).stdout)
    assert slurm.run("sinfo", "-h", "-o", "%t").stdout.strip() in ("idle", "mix", "comp", "alloc")


@pytest.fixture(scope="session")
def memory(slurm):
    """Return the memory of a simulated H100."""
    machine = simulator.open_machine("h100:2", slurm.folder / "machines")
    return machine.devices[0].memory_bytes


def machines(slurm):
    return {"PYVGPU_SIMULATED_MACHINES": str(slurm.folder / "machines")}


def part(memory, shards):
    return quantity.round_down(memory * shards // 8)


def clocks(slurm):
    """Return the paths at which the jobs' shims find the clocks that the arbiter keeps."""
    return [str(link.readlink()) for link in slurm.root("/run/pyvgpu").glob("*/clock.[0-9]")]


def figures(text):
    """Return what probe.c printed, such as {"total": [1024], "alloc": [0]}."""
    found = {}
    for word, value in re.findall(r"^(init|total|alloc) (\d+)$", text, re.MULTILINE):
        found.setdefault(word, []).append(int(value))
    return found


def test_a_job_is_held_to_its_part_of_the_memory(slurm, probe, memory):
    mine = part(memory, 2)
    ran = slurm.run("srun", "--gres=shard:2", probe, LIBCUDA, mine - 2 * GIB)
    assert figures(ran.stdout) == {"init": [0], "total": [mine], "alloc": [0]}, ran.stderr
    ran = slurm.run("srun", "--gres=shard:2", probe, LIBCUDA, mine)
    assert figures(ran.stdout)["alloc"] == [OUT_OF_MEMORY]


def test_a_job_of_all_shards_has_the_whole_device(slurm, probe, memory):
    ran = slurm.run("srun", "--gres=shard:8", probe, LIBCUDA, 70 * GIB)
    assert figures(ran.stdout) == {"init": [0], "total": [memory], "alloc": [0]}, ran.stderr


def test_tasks_of_a_step_share_one_quota(slurm, probe, memory):
    """Slurm tells each of them the step's shards."""
    most = part(memory, 2) * 6 // 10
    with slurm.started("srun", "-n2", "--gres=shard:2", probe, LIBCUDA, most, "wait") as step:
        said = [step.stdout.readline() for _ in range(6)]
        step.stdin.close()
    assert sorted(figures("".join(said))["alloc"]) == [0, OUT_OF_MEMORY]


def test_jobs_share_a_gpu_and_another_gpu_is_used_when_it_is_full(slurm, probe, memory):
    commands = [
        ("srun", f"--gres=shard:{shards}", probe, LIBCUDA, GIB, "wait") for shards in (5, 3, 7)
    ]
    started = [slurm.started(*command) for command in commands]
    for job, shards in zip(started, (5, 3, 7), strict=True):
        said = "".join(job.stdout.readline() for _ in range(3))
        assert figures(said) == {"init": [0], "total": [part(memory, shards)], "alloc": [0]}
    assert len(slurm.runs()) == 3
    waiting.wait_until(lambda: sum(map(slurm.exists, clocks(slurm))) == 3)
    for job in started:
        job.communicate()
        assert job.returncode == 0


def test_jobs_without_shards_are_untouched(slurm):
    show = ("sh", "-c", "echo path=$LD_LIBRARY_PATH; grep -c overlay /proc/self/mounts")
    bare = slurm.run(*show, LD_LIBRARY_PATH="/a").stdout  # other programs may have overlays
    assert bare.startswith("path=/a\n")
    for gres in ("none", "gpu:1"):
        ran = slurm.run("srun", f"--gres={gres}", *show, LD_LIBRARY_PATH="/a")
        assert ran.stdout == bare
        assert "pyvgpu" not in ran.stderr


def test_the_users_environment_does_not_lift_the_quota(slurm, probe, memory):
    driver = shim.simulator_libraries() / "libcuda.so.999.1"
    tampered = {"SLURM_SHARDS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0"}
    without = ("env", "-u", "LD_LIBRARY_PATH", "SLURM_SHARDS_ON_NODE=8")
    ran = slurm.run("srun", "--gres=shard:1", *without, probe, driver, GIB, **tampered)
    assert figures(ran.stdout)["total"] == [part(memory, 1)], ran.stderr
    none = slurm.run("srun", "env", **tampered)
    assert "libcuda" not in none.stdout
    assert "/runs/" not in none.stdout


def test_explicit_values_hold_within_the_shards(slurm, probe):
    ran = slurm.run("srun", "--gres=shard:2", "--vmemory=4GiB", "--vcore=10", probe, LIBCUDA, GIB)
    assert figures(ran.stdout)["total"] == [4 * GIB], ran.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gres=shard:2", "--vmemory=40GiB"], "--vmemory 40GiB: must be at most"),
        (["--gres=shard:2", "--vcore=26"], "--vcore 26: must be at most 25"),
        (["--gres=shard:2", "--vcore=x"], "--vcore 'x': must be a whole percentage"),
        (["--gres=shard:2", "--vcore=--user=0"], "--vcore '--user=0': must be a whole"),
        (["--vcore=20"], "--vcore and --vmemory: the job has no shards"),
    ],
)
def test_a_quota_that_cannot_be_set_fails_the_step_with_one_line(slurm, options, said):
    ran = slurm.run("srun", "-n2", *options, "echo", "started")
    assert ran.returncode != 0
    assert "started" not in ran.stdout
    assert ran.stderr.count("pyvgpu: ") == 1
    assert f"pyvgpu: {said}" in ran.stderr


def test_a_job_fails_while_another_run_has_its_part(slurm):
    """Also in a batch script, and without draining the node."""
    command = (PYVGPU, "run", "--simulate", "h100:2", "--vmemory", "70GiB", "--name", "rival")
    rivals = [
        slurm.command(
            *command[:-1], f"rival-{index}", "--device", index, "sh", "-c", "echo; cat", user=0
        )
        for index in range(2)
    ]
    held = [
        subprocess.Popen(
            rival,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **machines(slurm)},
        )
        for rival in rivals
    ]
    try:
        for run in held:
            assert run.stdout.readline() == b"\n"
        ran = slurm.run("srun", "--gres=shard:4", "echo", "started")
        assert ran.returncode != 0
        assert "started" not in ran.stdout
        assert "pyvgpu: vmemory" in ran.stderr
        assert "rival-0" in ran.stderr
        state, said = slurm.batch("echo started", "--gres=shard:4")
        assert state == "FAILED"
        assert "pyvgpu: vmemory" in said
        assert "started" not in said
    finally:
        for run in held:
            run.communicate()
    assert slurm.run("srun", "--gres=shard:4", "true").returncode == 0


def test_the_steps_of_a_batch_job_share_its_quota(slurm, probe, memory):
    """Also one that asks for fewer shards, or for none."""
    held = f"{probe} {LIBCUDA} $(({part(memory, 4)} * 6 / 10))"
    state, said = slurm.batch(
        f"mkfifo pipe\n{held} wait <pipe &\nexec 3>pipe\n"
        "until grep -q alloc batch.out; do sleep 0.1; done\n"
        f"srun --gres=shard:4 {held}\nsrun --gres=shard:1 {held}\nsrun --gres=none {held}\n"
        "exec 3>&-\nwait\n",
        "--gres=shard:4",
    )
    assert state == "COMPLETED", said
    assert figures(said)["total"] == [part(memory, 4)] * 4, said
    assert figures(said)["alloc"] == [0, *[OUT_OF_MEMORY] * 3], said


def test_options_of_a_batch_job_hold_for_its_steps_and_others_are_refused(slurm, probe):
    state, said = slurm.batch(
        f"srun {probe} {LIBCUDA} {GIB}\nsrun --vmemory=5GiB echo started\n",
        "--gres=shard:3",
        "--vmemory=6GiB",
    )
    assert state == "FAILED"
    assert figures(said)["total"] == [6 * GIB], said
    assert "pyvgpu: --vmemory" in said
    assert "started" not in said


def test_a_step_with_more_shards_raises_the_quota_of_its_job(slurm, probe, memory):
    inner = (
        f"srun --gres=shard:1 {probe} {LIBCUDA} {GIB}; srun {probe} {LIBCUDA} {GIB};"
        "there=$(mktemp -d -p $PWD);"
        f'srun --overlap --gres=shard:2 sh -c "{probe} {LIBCUDA} {GIB}; touch $there/begun;'
        ' until [ -e $there/done ]; do sleep 0.1; done" &'
        f"until [ -e $there/begun ]; do sleep 0.1; done; srun --overlap {probe} {LIBCUDA} {GIB};"
        "touch $there/done; wait; rm -r $there"
    )
    ran = slurm.run("salloc", "--gres=shard:4", "sh", "-c", inner)
    totals = figures(ran.stdout)["total"]
    assert totals[:2] == [part(memory, 1), part(memory, 4)], ran.stderr
    assert totals[-1] == part(memory, 4), ran.stderr


def test_an_interactive_step_has_the_jobs_quota(slurm, probe, memory):
    """Slurm leaves it the user's SLURM_STEP_GPUS, which must have no effect."""
    typed = f"printf '%s\\n' '{probe} {LIBCUDA} {GIB}' exit"
    terminal = "script -qec 'salloc --gres=shard:2' /dev/null"
    ran = slurm.run("sh", "-c", f"{typed} | {terminal}", SLURM_STEP_GPUS="1", SHELL="/bin/sh")
    said = ran.stdout.replace("\r", "")
    assert figures(said)["total"] == [part(memory, 2)], said
    assert figures(said)["alloc"] == [0]


def test_a_killed_slurmstepd_leaves_nothing_behind(slurm, probe):
    """Slurm itself learns of its death late, so the test ends the job."""
    command = ("srun", "--job-name=orphan", "--gres=shard:2", probe, LIBCUDA, GIB, "wait")
    with slurm.started(*command) as step:
        [step.stdout.readline() for _ in range(3)]
        assert not slurm.is_clean()
        kill(slurm, r"^slurmstepd: \[\d+\.0\]")
        waiting.wait_until(slurm.is_clean)
        slurm.run("scancel", "--name=orphan")
        step.kill()


def test_without_its_holder_a_job_gets_no_new_context(slurm, probe):
    """Its files are gone then, and the bare driver does not appear in their place."""
    driver = shim.simulator_libraries() / "libcuda.so.999.1"
    other = driver.with_name("libnvidia-ml.so.999.1")  # which nothing has opened before
    later = "; ".join(f"{probe} {library} {GIB}" for library in (LIBCUDA, driver, other))
    inner = f"{probe} {driver} {GIB}; read line; {later}"
    with slurm.started("srun", "--gres=shard:2", "sh", "-c", inner) as step:
        before = "".join(step.stdout.readline() for _ in range(3))
        kill(slurm, r"pyvgpu\.slurm\.step")
        trees = slurm.root("/var/cache/pyvgpu/runs")
        waiting.wait_until(lambda: not list(trees.iterdir()))
        after, _ = step.communicate("\n")
    assert slurm.run("srun", "--gres=shard:8", "true").returncode == 0  # removes its socket
    assert figures(before)["init"] == [0]
    assert after.count("dlopen ") == 3, after
    assert figures(after) == {}


def kill(slurm, pattern):
    """Kill the process in the namespaces whose command line matches, but not its children."""
    listed = slurm.run("ps", "-eo", "pid,ppid,args", user=0).stdout
    found = [line.split(None, 2) for line in listed.splitlines()]
    matching = {pid: parent for pid, parent, command in found if re.search(pattern, command)}
    pids = [pid for pid, parent in matching.items() if parent not in matching]
    assert len(pids) == 1, listed
    ran = slurm.run("kill", f"-{signal.SIGKILL:d}", *pids, user=0)
    assert ran.returncode == 0, ran.stderr
