"""Memory limits of containers that a driver with support for cgroups enforces itself."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cgroup_room
import granted
import machine_room
import pytest
import rights
import waiting
from granted import GIB, grant_of, share_of

from pyvgpu import shim
from pyvgpu.deviceplugin.containers import cdi_edits, process_owner, store
from pyvgpu.machine import memory_limit
from pyvgpu.simulation import simulator

pytestmark = [
    cgroup_room.needs_cgroups,
    rights.needs_mounts,
    rights.needs_first_pid_namespace,
]

MIB = 1 << 20
MARGIN = memory_limit.MARGIN_BYTES
CONTEXT = 256 * MIB

# The agent's component that sets limits, with the audit that finds processes; a command per line.
AGENT = """
import dataclasses, json, sys
from pathlib import Path
from pyvgpu import nvml
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.audit import auditor
from pyvgpu.deviceplugin.containers import driver_limits, store
base, short, library = map(Path, sys.argv[1:4])
places = store.GrantStore(base / "grants", base / "cdi")
given = {one["id"]: grants.load(one) for one in json.loads(sys.argv[4])}
limits = driver_limits.DriverLimits(places, base, short, lambda: given)
hook = limits.meet(library)
poll = auditor.AuditorDependencies(limit=limits.poll)
watching = auditor.Auditor(library, places, lambda: given, poll)
print(json.dumps([str(hook.program), str(hook.socket)]), flush=True)
for line in sys.stdin:
    word, grant_id, *more = line.split()
    if word == "quota":
        one = given[grant_id]
        shares = tuple(dataclasses.replace(share, vmemory=int(more[0])) for share in one.shares)
        given[grant_id] = dataclasses.replace(one, shares=shares)
        limits.grow(given[grant_id])
    if word == "poll":
        with nvml.session(library):
            watching.correct()
    print(json.dumps(dataclasses.asdict(limits.of(grant_id))), flush=True)
limits.stop()
"""

TAKE = """
context()
held = 0
while not (code := alloc(64 * MIB)[0]):
    held += 64
    if held > 8192:
        break
answer([held, code])
sys.stdin.readline()
"""


@pytest.fixture
def machine(request, tmp_path):
    """Open the machine of these tests; with a parameter, a line of its description."""
    described = tmp_path / "limits.machine"
    described.write_text(
        "pyvgpu-simulated-machine 1\nmachine=h100:2\ncgroup_limits=1\n"
        f"context_bytes={CONTEXT}\n{getattr(request, 'param', '')}\n"
    )
    return simulator.open_machine(str(described), tmp_path / "m")


class Agent:
    """The running part of an agent."""

    def __init__(self, process):
        self._process = process
        self.hook = json.loads(process.stdout.readline())

    def ask(self, word, grant, *more):
        self._process.stdin.write(" ".join(map(str, (word, grant.id, *more))) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def created(self, grant, pid, state=None):
        """Run the hook as a runtime does."""
        state = state or {"ociVersion": "1.2.0", "id": "c", "pid": pid, "bundle": "/b"}
        text = state if isinstance(state, str) else json.dumps(state)
        done = subprocess.run(
            [*self.hook, grant.id], input=text, text=True, timeout=waiting.PROMPT
        )
        assert done.returncode == 0


@pytest.fixture
def short():
    with tempfile.TemporaryDirectory(prefix="pyvgpu-") as folder:  # a socket's path is short
        yield Path(folder)


@pytest.fixture
def started(machine, tmp_path, short):
    """Return a function that starts an agent which knows these grants."""

    @contextlib.contextmanager
    def start(*made):
        library = machine_room.driver_folder(machine) / "libnvidia-ml.so.1"
        dumped = json.dumps([granted.grants.dump(grant) for grant in made])
        with subprocess.Popen(
            [sys.executable, "-c", AGENT, tmp_path, short, library, dumped],
            env=machine_room.environment(machine),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            yield Agent(process)
            process.stdin.close()
            assert process.wait(timeout=waiting.PROMPT) == 0

    return start


@contextlib.contextmanager
def container(places, grant, cgroup, root, source):
    """Run *source* in a container of *grant* in a cgroup; yield the process."""
    edits = granted.edits_of(places.specification(grant.id))
    joined = ("sh", "-c", 'echo 0 >"$1" && shift && exec "$@"', "sh", cgroup / "cgroup.procs")
    with granted.start(edits, root, source, around=joined) as process:
        yield process
        process.stdin.close()


def read(process):
    return json.loads(process.stdout.readline())


def past_the_shim(driver):
    return f"cuda = ctypes.CDLL({str(driver.tree / 'exclusive/lib64/libcuda.so.1')!r})\n"


@pytest.fixture
def grant(places, machine, driver):
    made = grant_of(share_of(machine))
    places.make(made, driver)
    return made


@pytest.fixture
def cgroup():
    with cgroup_room.cgroup() as folder:
        yield folder


def waits(cgroup):
    """Return a process in the cgroup, like a container's before its program starts."""
    source = cgroup_room.joining(cgroup) + "print(0, flush=True); import sys; sys.stdin.readline()"
    process = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    return process


def test_limit_is_set_before_the_program_starts(started, places, grant, cgroup, driver, tmp_path):
    with started(grant) as agent:
        with waits(cgroup) as process:
            agent.created(grant, process.pid)
            process.stdin.close()
        found = agent.ask("of", grant)
        assert found == {"cgroups": [str(cgroup)], "sizes": [2 * GIB + MARGIN], "why": ""}
        with container(places, grant, cgroup, tmp_path / "a", TAKE) as held:
            assert read(held) == [2048 - 256, 2]
        source = past_the_shim(driver) + TAKE
        with container(places, grant, cgroup, tmp_path / "b", source) as bypass:
            assert read(bypass) == [2048 + 64 - 256, 2]


def test_container_without_hook_is_limited_at_its_first_use(
    started, places, grant, cgroup, driver, tmp_path
):
    source = past_the_shim(driver) + "context(); answer(0); sys.stdin.readline()" + TAKE
    with started(grant) as agent, container(places, grant, cgroup, tmp_path / "a", source) as it:
        assert read(it) == 0
        assert agent.ask("of", grant)["sizes"] == []
        assert agent.ask("poll", grant)["sizes"] == [2 * GIB + MARGIN]
        it.stdin.write("\n")
        it.stdin.flush()
        assert read(it) == [2048 + 64 - 256, 2]


def test_limit_is_raised_before_the_quota_and_lowered_after(started, grant, cgroup):
    with started(grant) as agent:
        with waits(cgroup) as process:
            agent.created(grant, process.pid)
            process.stdin.close()
        assert agent.ask("quota", grant, 3 * GIB)["sizes"] == [3 * GIB + MARGIN]
        assert agent.ask("quota", grant, 1 * GIB)["sizes"] == [3 * GIB + MARGIN]
        assert agent.ask("poll", grant)["sizes"] == [1 * GIB + MARGIN]


def test_limit_that_cannot_be_changed_is_shown_and_set_later(started, machine, grant, cgroup):
    """Otherwise the driver would refuse what the shim allows, until the next change."""

    def refuse(*lines):
        simulator.set_faults(machine, *lines)
        time.sleep(0.2)  # they take effect within 0.1 s

    with started(grant) as agent:
        with waits(cgroup) as process:
            agent.created(grant, process.pid)
            process.stdin.close()
        refuse(f"call {memory_limit.FUNCTION} * 999")
        for word, *more in (("quota", 3 * GIB), ("poll",)):
            found = agent.ask(word, grant, *more)
            assert (found["sizes"], bool(found["why"])) == ([2 * GIB + MARGIN], True)
        refuse()
        found = agent.ask("poll", grant)
        assert (found["sizes"], found["why"]) == ([3 * GIB + MARGIN], "")


def test_next_agent_reads_the_recorded_limit(started, grant, cgroup):
    with started(grant) as agent, waits(cgroup) as process:
        agent.created(grant, process.pid)
        process.stdin.close()
    with started(grant) as agent:
        assert agent.ask("of", grant)["sizes"] == [2 * GIB + MARGIN]
        agent.ask("quota", grant, 4 * GIB)
        assert agent.ask("poll", grant)["sizes"] == [4 * GIB + MARGIN]


@pytest.mark.parametrize("machine", ["reserved_bytes=0"], indirect=True)
def test_limit_does_not_exceed_the_device(started, places, machine, driver, cgroup):
    whole = machine.devices[0].memory_bytes
    made = grant_of(share_of(machine, size=whole - MIB))
    places.make(made, driver)
    with started(made) as agent, waits(cgroup) as process:
        agent.created(made, process.pid)
        process.stdin.close()
        assert agent.ask("of", made)["sizes"] == [whole]


def test_all_containers_of_a_claim_are_limited(started, grant):
    with (
        started(grant) as agent,
        cgroup_room.cgroup() as one,
        cgroup_room.cgroup() as other,
    ):
        for group in (one, other):
            with waits(group) as process:
                agent.created(grant, process.pid)
                process.stdin.close()
        assert agent.ask("of", grant)["cgroups"] == [str(one), str(other)]


@pytest.mark.parametrize(
    "state",
    [
        "",
        "{}",
        "nonsense" * 100_000,
        '{"annotations": {"pid": "7", "a": "\\"pid\\": 8"}}',
        json.dumps({"annotations": {"pid": "12", "x": "y" * (2 << 20)}, "pid": 1}),
    ],
)
def test_hook_state_without_pid_sets_nothing(started, grant, state):
    with started(grant) as agent:
        agent.created(grant, 0, state)
        assert agent.ask("of", grant) == {"cgroups": [], "sizes": [], "why": ""}


def test_hook_finds_the_pid_anywhere_in_the_state(started, grant, cgroup):
    with started(grant) as agent, waits(cgroup) as process:
        state = {"annotations": {"pid": "7", "text": '"pid": 8, {"pid": 9}'}, "pid": process.pid}
        agent.created(grant, 0, json.dumps(state, indent=4))
        process.stdin.close()
        assert agent.ask("of", grant)["cgroups"] == [str(cgroup)]


def test_hook_without_an_agent_lets_the_container_start(short):
    command = [shim.created_hook(), short / "created/control", f"{1:016x}"]
    assert subprocess.run(command, input=b'{"pid": 1}', timeout=waiting.PROMPT).returncode == 0
    assert subprocess.run([*command, "more"], input=b"", timeout=waiting.PROMPT).returncode == 0


def test_only_shares_get_the_hook(places, machine, tmp_path):
    bare = granted.driver_of(machine, tmp_path / "driver")
    hook = cdi_edits.Hook(Path("/var/lib/p/pyvgpu-created"), Path("/run/p/created/control"))
    for driver in (bare, dataclasses.replace(bare, hook=hook)):
        share, whole = (
            grant_of(share_of(machine)),
            grant_of(share_of(machine, vcore=100), number=2),
        )
        for made in (share, whole):
            store.GrantStore(tmp_path / "g", tmp_path / "cdi").make(made, driver)
        edits = granted.edits_of(tmp_path / "cdi" / f"pyvgpu.io-grant-{share.id}.json")
        hooks = edits.get("hooks")
        words = ["/var/lib/p/pyvgpu-created", "/run/p/created/control", share.id]
        expected = {"hookName": "createRuntime", "path": words[0], "args": words, "timeout": 5}
        assert hooks == (None if driver is bare else [expected])
        edits = granted.edits_of(tmp_path / "cdi" / f"pyvgpu.io-grant-{whole.id}.json")
        assert "hooks" not in edits


def test_sub_cgroup_belongs_to_the_container():
    name = "cri-containerd-" + "0123456789abcdef" * 4
    within = Path("/sys/fs/cgroup/kubepods.slice/kubepods-pod1.slice") / f"{name}.scope"
    for folder in (within, within / "init.scope", within / "system.slice/ssh.service"):
        assert process_owner.container_folder(folder) == within
    assert process_owner.container_folder(Path("/sys/fs/cgroup/a/b")) == Path("/sys/fs/cgroup/a/b")
