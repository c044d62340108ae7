"""The C programs of the kit: their declarations match NVIDIA's, and they build and run."""

import pathlib
import re
import subprocess

import headers
import portable
import pytest
from kit import binaries, record

GCC = ("gcc",)


@pytest.mark.parametrize("source", sorted(path.name for path in binaries.SOURCES.glob("*.c")))
def test_declarations_agree_with_nvidias_header(source, tmp_path):
    folders = [f"-I{folder}" for folder in headers.folders()]
    subprocess.run(
        [*GCC, *binaries.FLAGS, "-DKIT_CUDA_HEADER", *folders, "-c", "-o", tmp_path / "object",
         binaries.SOURCES / source],
        check=True,
    )  # fmt: skip


def test_a_declaration_that_differs_from_the_header_is_found(tmp_path):
    right = (binaries.SOURCES / "cu.h").read_text()
    wrong = re.sub(r"\(cuMemAlloc_v2, \(CUdeviceptr \*, size_t\)", "(cuMemAlloc_v2, (int)", right)
    assert wrong != right
    (tmp_path / "cu.h").write_text(wrong)
    (tmp_path / "cu.c").write_text((binaries.SOURCES / "cu.c").read_text())
    folders = [f"-I{folder}" for folder in headers.folders()]
    done = subprocess.run(
        [*GCC, "-std=gnu11", "-DKIT_CUDA_HEADER", *folders, "-c", "-o", tmp_path / "object",
         tmp_path / "cu.c"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "conflicting types for" in done.stderr


@pytest.mark.slow
def test_programs_that_are_built_here_work_under_a_quota(kit, simulated):
    options, environment = simulated
    done = kit.run("--only", "compiled", *options, **environment)
    (stage,) = record.read(kit.out / "record.json")["stages"].values()
    assert done.returncode == 0, done.stdout
    assert {fact["name"]: fact["value"] for fact in stage["facts"]} == {
        "compiler": stage["facts"][0]["value"],
        **{f"{name}: compiled": "yes" for name in binaries.PROGRAMS},
    }
    assert [guarantee["name"] for guarantee in stage["guarantees"]] == [
        "a program linked here works under a quota",
        "a program linked here is refused twice the quota",
    ]


@pytest.mark.slow
def test_programs_that_are_not_in_the_kit_are_named_and_fail_no_stage(kit, simulated):
    options, environment = simulated
    names = ("quota", "shared", "forked", "launches", "alone", "tenants", "sharing")
    assert kit.run("--only", *names, *options, **environment).returncode == 0
    stages = record.read(kit.out / "record.json")["stages"]
    for name in names:
        (missing,) = stages[name]["missing"]
        assert "not in this kit; make gpu-kit puts it there" in missing["reason"]
        assert stages[name]["guarantees"] == []


def test_a_compiler_that_fails_is_quoted(tmp_path):
    with pytest.raises(binaries.NotHereError, match="unrecognized command-line option"):
        binaries.build("runtime", (*GCC, "--no-such-option"), tmp_path)
    with pytest.raises(binaries.NotHereError, match="No such file or directory"):
        binaries.build("runtime", (str(tmp_path / "cc"),), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (("families", "odd", "linked", "1"), "usage: families FAMILY WAY MOST_BYTES"),
        (("families", "plain", "odd", "1"), "odd: must be linked, dlsym, routed"),
        (("forked", "odd", "linked", "1"), "usage: forked workers|successor|orphan WAY BYTES"),
        (("shared", "handle", "linked"), "usage: shared handle|descriptor|pool WAY BYTES"),
        (("launches", "kernel", "linked", "0", "own", "1", "x"), "usage: launches kernel|graph"),
        (("tenant", "linked", "1", "1", "1", "257", "1", "x"), "usage: tenant WAY STEPS SECONDS"),
        (("runtime", "1"), "usage: runtime QUOTA_BYTES LIBRARY"),
    ],
)
def test_wrong_arguments_are_answered_with_the_usage(arguments, usage, tmp_path):
    name, *rest = arguments
    program = binaries.build(name, GCC, tmp_path)
    binaries.empty_driver(GCC, tmp_path)
    done = subprocess.run(
        [program, *rest], capture_output=True, text=True, check=False,
        env={"LD_LIBRARY_PATH": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr.startswith(usage)) == (64, True), done.stderr


def test_a_function_that_the_driver_lacks_is_named(tmp_path):
    source = tmp_path / "old.c"
    source.write_text("int cuDriverGetVersion(int *v) { *v = 11000; return 0; }\n")
    options = ("-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"))
    subprocess.run([*GCC, *options, source], check=True)
    done = subprocess.run(
        [binaries.build("families", GCC, tmp_path), "plain", "linked", "1"],
        capture_output=True, text=True, check=False, env={"LD_LIBRARY_PATH": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, '{"missing": "cuInit"}\n')


def test_the_newest_version_of_glibc_that_a_program_needs_is_found(tmp_path):
    source = tmp_path / "random.c"
    source.write_text(
        "#include <sys/random.h>\nint main(void) { char c; return getrandom(&c, 1, 0) != 1; }\n"
    )
    subprocess.run([*GCC, "-o", tmp_path / "random", source], check=True)
    assert portable.newest_glibc(tmp_path / "random") >= (2, 25)  # which brought getrandom
    subprocess.run([*GCC, "-static", "-o", tmp_path / "random", source], check=True)
    assert portable.newest_glibc(tmp_path / "random") == (0, 0)


def test_the_static_runtime_is_in_the_wheel_that_headers_come_from():
    assert pathlib.Path(portable.static_runtime()).stat().st_size > 0
