import json
import os
import subprocess
import sys

import pytest
import rights

from pyvgpu import doctor, models, shim
from pyvgpu.doctor import CheckResult, CheckState, PossibleRuns, Requirement
from pyvgpu.run import abilities
from pyvgpu.simulation import simulator

EVERYTHING = tuple(CheckResult(check.name, CheckState.OK, "", "") for check in doctor.CHECKS)
MAIN = "import sys, pyvgpu.cli; sys.exit(pyvgpu.cli.main())"
DOCTOR = (sys.executable, "-c", MAIN, "doctor")


def but(**states):
    """Return rows that are all well but these (underscores stand for spaces)."""
    named = {name.replace("_", " "): state for name, state in states.items()}
    assert named.keys() <= {row.check for row in EVERYTHING}
    return [
        CheckResult(row.check, named.get(row.check, row.state), row.found, row.remedy)
        for row in EVERYTHING
    ]


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        pytest.param(but(), PossibleRuns(real=True, simulated=True), id="all well"),
        pytest.param(
            but(driver=CheckState.MISSING, devices=CheckState.SKIPPED),
            PossibleRuns(real=False, simulated=True),
            id="no GPU",
        ),
        pytest.param(
            but(simulator=CheckState.MISSING),
            PossibleRuns(real=True, simulated=False),
            id="no simulator",
        ),
        pytest.param(
            but(shim=CheckState.MISSING), PossibleRuns(real=False, simulated=False), id="no shim"
        ),
        pytest.param(
            but(cache_folder=CheckState.MISSING),
            PossibleRuns(real=False, simulated=False),
            id="no cache",
        ),
        pytest.param(
            but(mount_namespaces=CheckState.LIMITED, overlay_in_them=CheckState.MISSING),
            PossibleRuns(real=True, simulated=True),
            id="no namespaces",
        ),
        pytest.param(
            but(kernel_module=CheckState.LIMITED),
            PossibleRuns(real=True, simulated=True),
            id="limited",
        ),
    ],
)
def test_verdict_follows_from_the_failed_checks(rows, verdict):
    assert doctor.evaluate(rows) == verdict


def test_checks_are_named_once_and_cover_every_need():
    assert len({check.name for check in doctor.CHECKS}) == len(doctor.CHECKS)
    assert {check.need for check in doctor.CHECKS} == set(Requirement)


def rows_of(scene):
    return {row.check: row for row in doctor.examine(scene)}


@pytest.fixture
def environment(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path), "PATH": os.environ["PATH"]}


@pytest.fixture
def scene(environment):
    return doctor.CheckedMachine(environment, shim.simulator_libraries())


def test_rows_are_one_for_each_check_in_order(scene):
    assert [row.check for row in doctor.examine(scene)] == [c.name for c in doctor.CHECKS]


def test_failed_checks_have_a_finding_and_a_remedy(scene):
    for row in doctor.examine(scene):
        assert row.found
        if row.state is CheckState.LIMITED:
            assert row.remedy


def test_build_is_ok(scene):
    rows = rows_of(scene)
    assert rows["shim"].state is CheckState.OK
    assert int(rows["shim"].found.split()[0]) > 30
    assert rows["shim's glibc"].found == "the shim runs on glibc 2.17 and later"
    assert rows["simulator"].found == f"driver 999.1, models {', '.join(models.BY_KEY)}"


def test_driver_is_named_with_release_and_folder(scene):
    assert rows_of(scene)["driver"].found == (
        f"999.1 in {shim.simulator_libraries()} (as given), 2 libraries"
    )


def test_devices_are_asked_through_nvml(tmp_path, scene, monkeypatch):
    machine = simulator.open_machine("t4:2", root=tmp_path / "machines")
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    row = rows_of(scene)["devices"]
    assert row.state is CheckState.OK
    assert [text.rpartition(", ")[2] for text in row.found.split("; ")] == [
        device.uuid for device in machine.devices
    ]


@pytest.mark.parametrize(
    ("faults", "state", "indices"),
    [
        pytest.param(["mig 1"], CheckState.LIMITED, "1", id="one of them"),
        pytest.param(["mig 0", "mig 1"], CheckState.MISSING, "0,1", id="all"),
    ],
)
def test_devices_in_mig_mode_are_named(tmp_path, scene, monkeypatch, faults, state, indices):
    machine = simulator.open_machine("h100:2", root=tmp_path / "machines")
    simulator.set_faults(machine, *faults)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    row = rows_of(scene)["devices"]
    assert row.state is state
    assert f"{machine.devices[1].uuid}, in MIG mode" in row.found
    assert ("in MIG mode" in row.found.split("; ")[0]) == ("mig 0" in faults)
    assert row.remedy.endswith(f"nvidia-smi -i {indices} -mig 0")


def test_driver_without_a_device_is_missing_with_a_remedy(scene):
    row = rows_of(scene)["devices"]
    assert row.state is CheckState.MISSING
    assert "--simulate" in row.remedy


def test_missing_driver_names_the_searched_folders(environment, tmp_path):
    rows = rows_of(doctor.CheckedMachine(environment, tmp_path))
    assert rows["driver"].state is CheckState.MISSING
    assert str(tmp_path) in rows["driver"].found
    assert "--driver-libraries" in rows["driver"].remedy
    assert (rows["devices"].state, rows["devices"].found) == ("skipped", "no driver to query")
    skipped = {name for name, row in rows.items() if row.state is CheckState.SKIPPED}
    assert skipped == {"kernel module", "devices", "links to the driver"}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param("NVRM version: NVIDIA UNIX  999.1  Mon Jan", CheckState.OK, id="same"),
        pytest.param("NVRM version: NVIDIA UNIX  580.65.06  Mon", CheckState.MISSING, id="other"),
        pytest.param(None, CheckState.LIMITED, id="not loaded"),
    ],
)
def test_kernel_module_must_be_of_the_drivers_release(environment, tmp_path, text, state):
    module = tmp_path / "version"
    if text:
        module.write_text(text)
    scene = doctor.CheckedMachine(environment, shim.simulator_libraries(), module)
    assert rows_of(scene)["kernel module"].state is state


def test_links_to_the_driver_are_tried_and_leave_nothing(scene, tmp_path):
    row = rows_of(scene)["links to the driver"]
    assert row.state in (CheckState.OK, CheckState.LIMITED)
    assert list((tmp_path / "pyvgpu").iterdir()) == []


def ask(environment, *options):
    done = subprocess.run(
        [*DOCTOR, "--json", *options], env=environment, capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_json_has_the_rows_of_the_table(environment):
    code, document = ask(environment)
    assert code == 0
    assert document["run"]["simulated"] is True
    assert [row["check"] for row in document["checks"]] == [c.name for c in doctor.CHECKS]
    assert all(row.keys() == {"check", "state", "found", "remedy"} for row in document["checks"])
    assert {row["state"] for row in document["checks"]} <= {state.value for state in CheckState}
    piped = subprocess.run(
        DOCTOR, env={**environment, "COLUMNS": "40"}, capture_output=True, text=True
    )
    assert piped.returncode == 0
    assert "`pyvgpu run` works" in piped.stdout.splitlines()[0]
    assert all(line == line.rstrip() for line in piped.stdout.splitlines())
    lines = [" ".join(line.split()) for line in piped.stdout.splitlines()]
    for row in document["checks"]:
        if row["check"] not in ("reservations", "arbiter"):  # runs come and go
            assert f"{row['check']} {row['state']} {row['found']}" in lines


def in_namespace(environment, commands, *arguments):
    """Run the doctor after shell *commands* with *arguments* in new namespaces.

    The commands shift the arguments away.
    """
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-e", "-c"]
    done = subprocess.run(
        [*unshare, f'{commands}\nexec "$@"', "sh", *arguments, *DOCTOR, "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    document = json.loads(done.stdout)
    return done.returncode, {row["check"]: row for row in document["checks"]}


# Replaces /var/tmp: new files cannot be executed, and existing ones keep their paths, except our
# own folders. This checkout and its Python may be below it.
NOTHING_NEW = """
mount -t tmpfs -o noexec none "$1"
mount -t tmpfs -o noexec none "$2"
mkdir "$2/.before"
mount --rbind /var/tmp "$2/.before"
for each in "$2"/.before/*; do
    case $each in */pyvgpu-*) ;; *) ln -s ".before/${each##*/}" "$2/" ;; esac
done
mount --rbind "$2" /var/tmp
shift 2
"""


@rights.needs_user_namespace
def test_without_an_executable_folder_no_run_works(environment, tmp_path, tmp_path_factory):
    place = tmp_path_factory.mktemp("new")
    code, rows = in_namespace(environment, NOTHING_NEW, tmp_path, place)
    assert code == 69
    assert rows["cache folder"]["state"] == "missing"
    assert "noexec" in rows["cache folder"]["found"]
    assert "XDG_CACHE_HOME" in rows["cache folder"]["found"]


@rights.needs_user_namespace
def test_forbidden_namespaces_limit_runs_but_prevent_none(environment):
    code, rows = in_namespace(environment, "echo 0 > /proc/sys/user/max_mnt_namespaces")
    assert code == 0
    for check in ("mount namespaces", "overlay in them"):
        assert rows[check]["state"] == "limited"
        assert "absolute path" in rows[check]["remedy"]
    assert rows["overlay in them"]["found"] == "no mount namespace for it"


@pytest.mark.parametrize("ability", [abilities.execution, abilities.lock_of_mapping])
def test_failed_checks_of_a_folder_name_it(ability, tmp_path):
    assert ability(tmp_path) is None
    assert ability(tmp_path / "nowhere") == f"{tmp_path}/nowhere: No such file or directory"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "this program itself has no quota"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "limits must request one, such as pyvgpu.io/"),
    ],
)
def test_a_program_without_a_quota_is_reported(environment, variables, said):
    wide = {**environment, **variables, "COLUMNS": "4000"}
    done = subprocess.run(DOCTOR, env=wide, capture_output=True, text=True)
    assert said in done.stdout


def test_prove_without_a_device_is_refused(environment, tmp_path):
    ask = [*DOCTOR, "--prove", "--driver-libraries", str(tmp_path)]
    done = subprocess.run(ask, env=environment, capture_output=True, text=True)
    assert done.returncode == 69
    assert "works with --simulate h100 only" in done.stderr


def test_a_simulated_machine_without_a_proof_is_refused(environment):
    ask = [*DOCTOR, "--simulate", "h100"]
    done = subprocess.run(ask, env=environment, capture_output=True, text=True)
    assert done.returncode == 64
    assert "pyvgpu doctor --prove --simulate h100" in done.stderr
