"""A run is refused if its program would load another libcuda, which is named."""

import shutil
import subprocess

import pytest


@pytest.fixture
def rival(tmp_path):
    folder = tmp_path / "compat"
    folder.mkdir()
    subprocess.run(
        ["gcc", "-shared", "-x", "c", "/dev/null", "-o", folder / "libcuda.so.1"],
        check=True,
    )
    return folder


def linked(tmp_path, folder, tag):
    program = tmp_path / "program"
    source = tmp_path / "program.c"
    source.write_text("int main(void)\n{\n    return 0;\n}\n")
    flag = {"DT_RPATH": "--disable-new-dtags", "DT_RUNPATH": "--enable-new-dtags"}[tag]
    subprocess.run(["gcc", source, f"-Wl,{flag},-rpath,{folder}", "-o", program], check=True)
    return program


def refused(ran, folder):
    assert ran.returncode == 64
    assert str(folder) in ran.stderr
    assert "has a libcuda.so.1 of its own" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_rival_in_ld_library_path(runner, rival):
    ran = runner("--vmemory", "2GiB", "true", env={"LD_LIBRARY_PATH": f"/nowhere:{rival}"})
    refused(ran, rival)
    assert "LD_LIBRARY_PATH names" in ran.stderr


@pytest.mark.parametrize("tag", ["DT_RPATH", "DT_RUNPATH"])
def test_rival_in_the_programs_own_path(runner, rival, tmp_path, tag):
    ran = runner("--vmemory", "2GiB", linked(tmp_path, rival, tag))
    refused(ran, rival)
    assert f"the {tag} of {tmp_path / 'program'} names" in ran.stderr


def test_rival_beside_the_program(runner, rival, tmp_path):
    program = linked(tmp_path, "$ORIGIN/compat", "DT_RPATH")
    refused(runner("--vmemory", "2GiB", program), rival)


@pytest.mark.parametrize("first", ["#!{program}", "#!/usr/bin/env -S A=b {program} -x"])
def test_rival_of_a_scripts_interpreter(runner, rival, tmp_path, first):
    program = linked(tmp_path, rival, "DT_RPATH")
    script = tmp_path / "script"
    script.write_text(first.format(program=program) + "\n")
    script.chmod(0o755)
    refused(runner("--vmemory", "2GiB", script), rival)


def test_rival_that_is_preloaded(runner, rival):
    ran = runner("--vmemory", "2GiB", "true", env={"LD_PRELOAD": f"{rival}/libcuda.so.1"})
    assert ran.returncode == 64
    assert "LD_PRELOAD names" in ran.stderr


def test_folder_without_libcuda_is_no_rival(runner, tmp_path):
    ran = runner(
        "--vmemory",
        "2GiB",
        "sh",
        "-c",
        "echo $LD_LIBRARY_PATH",
        env={"LD_LIBRARY_PATH": str(tmp_path)},
    )
    assert ran.returncode == 0
    assert ran.stdout.strip().endswith(f"/lib64:{tmp_path}")


def test_drivers_own_folder_is_no_rival(runner):
    from pyvgpu import shim

    folder = shim.simulator_libraries()
    ran = runner("--vmemory", "2GiB", "true", env={"LD_LIBRARY_PATH": str(folder)})
    assert ran.returncode == 0, ran.stderr


def test_run_inside_a_run_is_refused(runner):
    ran = runner("--vmemory", "4GiB", *runner.command("--vmemory", "2GiB", "true"))
    assert ran.returncode == 64
    assert "LD_LIBRARY_PATH names" in ran.stderr
    assert "a run inside a run is not possible" in ran.stderr


def test_program_that_is_not_an_elf_file_is_left_to_the_kernel(runner, tmp_path):
    program = tmp_path / "program"
    shutil.copy("/etc/hostname", program)
    program.write_bytes(b"\x7fELF" + b"\0" * 100)
    program.chmod(0o755)
    ran = runner("--vmemory", "2GiB", program)
    assert ran.returncode in (126, 127)
