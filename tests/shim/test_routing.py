"""Every name leads to the shim, once; what it does not hook leads to the driver itself."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import hook_table
import pytest
import routes

from pyvgpu import shim
from pyvgpu.simulation import simulator
from pyvgpu.volumes import elf, find, mirror

HERE = Path(__file__).parent
CSRC = HERE.parent.parent / "csrc"
NAMES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so")
ABSOLUTE = ("/libcuda.so.1", "/libnvidia-ml.so.1")  # in the mirror's lib64


@pytest.fixture(scope="module")
def driver():
    return find.find_driver(shim.simulator_libraries())


@pytest.fixture(scope="module")
def tree(driver, tmp_path_factory):
    return mirror.ensure(driver, shim.shim_library(), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def build(driver, tmp_path_factory):
    """Build loads.c, linked in the given order to the driver's libraries."""
    folder = tmp_path_factory.mktemp("programs")
    linkable = {"CUDA": driver.libcuda, "NVML": driver.libnvidia_ml}

    def make(*linked):
        program = folder / "-".join(("loads", *linked))
        if not program.exists():
            # Against the driver's own files: a mirror is nothing to link with.
            libraries = [f"-l:{linkable[name].name}" for name in linked]
            flags = [f"-DLINKED_{name}" for name in linked]
            command = ["cc", "-Wall", "-Werror", "-fPIC", *flags, HERE / "loads.c", "-o", program]
            command += [f"-L{driver.folder}", "-Wl,--no-as-needed", *libraries, "-ldl"]
            subprocess.run(command, check=True)
        return program

    return make


class Seen:
    """What loads.c saw."""

    def __init__(self, program, tree, arguments):
        environment = {"LD_LIBRARY_PATH": str(tree.lib64), "PATH": os.environ["PATH"]}
        lines = subprocess.run(
            [program, *arguments], env=environment, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        words = [line.split(" ") for line in lines]
        self.handles = {word[1] for word in words if word[0] == "loaded"}
        self.inodes = {  # of what answers, but for the one symbol that passes through
            None if word[-1] == "none" else Path(word[-1]).stat().st_ino
            for word in words
            if word[0] in ("linked", "loaded") and "cuDriverGetVersion" not in word
        }
        self.passed = {word[-1] for word in words if "cuDriverGetVersion" in word}
        self.mapped = [int(word[1]) for word in words if word[0] == "mapped"]


def assert_one_shim(seen, driver, tree):
    own = (tree.lib64 / "libcuda.so.1").stat().st_ino
    assert seen.inodes == {own}
    assert len(seen.handles) <= 1
    assert seen.mapped.count(own) == 1
    for original in (driver.libcuda, driver.libnvidia_ml):
        inode = (tree.origin / original.name).stat().st_ino
        assert seen.mapped.count(inode) == 1


@pytest.mark.parametrize(
    "pair",
    list(itertools.permutations((*NAMES, *ABSOLUTE), 2)),
    ids=lambda pair: " then ".join(pair),
)
def test_each_pair_of_names_reaches_the_one_shim(build, driver, tree, pair):
    arguments = [f"{tree.lib64}{name}" if name in ABSOLUTE else name for name in pair]
    assert_one_shim(Seen(build(), tree, arguments), driver, tree)


@pytest.mark.parametrize("name", [*NAMES, *ABSOLUTE])
def test_each_name_alone_reaches_the_shim(build, driver, tree, name):
    argument = f"{tree.lib64}{name}" if name in ABSOLUTE else name
    assert_one_shim(Seen(build(), tree, [argument]), driver, tree)


@pytest.mark.parametrize(
    "linked",
    [("CUDA",), ("NVML",), ("CUDA", "NVML"), ("NVML", "CUDA")],
    ids=lambda linked: " and ".join(linked),
)
@pytest.mark.parametrize("name", [None, *NAMES, *ABSOLUTE])
def test_linked_program_reaches_the_one_shim(build, driver, tree, linked, name):
    arguments = [] if name is None else [f"{tree.lib64}{name}" if name in ABSOLUTE else name]
    seen = Seen(build(*linked), tree, arguments)
    assert_one_shim(seen, driver, tree)
    if "CUDA" in linked:
        (passed,) = seen.passed
        assert Path(passed).samefile(tree.origin / driver.libcuda.name)


def test_all_names_at_once_reach_the_one_shim(build, driver, tree):
    for order in (NAMES, NAMES[::-1]):
        assert_one_shim(Seen(build("NVML", "CUDA"), tree, order), driver, tree)


def test_same_program_without_the_mirror_reaches_the_bare_driver(build, driver, tree, tmp_path):
    """The probe can tell the two apart."""
    for soname, real in (
        ("libcuda.so.1", driver.libcuda),
        ("libnvidia-ml.so.1", driver.libnvidia_ml),
    ):
        (tmp_path / soname).symlink_to(real)
    bare = mirror.MirrorTree(tmp_path)
    (tmp_path / "lib64").symlink_to(".")
    seen = Seen(build("CUDA"), bare, [])
    assert seen.inodes == {driver.libcuda.stat().st_ino}
    assert (tree.lib64 / "libcuda.so.1").stat().st_ino not in seen.mapped


def hooks():
    """The shim's hooks: (base name or None, since, symbol)."""
    table = hook_table.cuda() + hook_table.nvml()
    return [(hook.base, hook.since, hook.symbol) for hook in table]


@pytest.fixture(scope="module")
def exports(driver):
    """Every entry point of the driver."""
    return routes.exports(driver)


@pytest.fixture(scope="module")
def found(driver, tree):
    """The output of lookups.py for every export and every base name."""
    done = subprocess.run(
        [sys.executable, routes.LOOKUPS],
        input=json.dumps(routes.question(driver)),
        env={"LD_LIBRARY_PATH": str(tree.lib64), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tables_name_hooks_that_the_shim_exports():
    symbols = {symbol for _, _, symbol in hooks()}
    assert len(symbols) > 30
    assert elf.exported_functions(shim.shim_library()) == symbols


@pytest.mark.slow
def test_hooked_names_lead_to_the_shim(found, tree, exports):
    own = str(tree.lib64 / "libcuda.so.1")
    hooked = {symbol for _, _, symbol in hooks()} & set(exports)
    assert len(hooked) > 30
    assert {found["exports"][symbol]["path"] for symbol in hooked} == {own}


def test_other_names_lead_to_the_drivers_own_functions(found, tree, driver, exports):
    hooked = {symbol for _, _, symbol in hooks()}
    passed = {name: found["exports"][name] for name in exports if name not in hooked}
    assert len(passed) > 500
    assert [name for name, each in passed.items() if not each["same"]] == []
    assert {each["path"] for each in passed.values()} == {
        str(tree.origin / driver.libcuda.name),
        str(tree.origin / driver.libnvidia_ml.name),
    }


def test_get_proc_address_returns_the_drivers_answers_with_hooks_substituted(found):
    assert found["answers"]["asked"] > 10_000
    assert found["answers"]["wrong"] == []


def test_get_proc_address_returns_each_hook_from_its_version_on(found, exports):
    hooked = {tuple(each) for each in found["answers"]["hooked"]}
    expected = {
        (base, since)
        for base, since, symbol in hooks()
        if base and symbol in exports and since <= simulator.CUDA_VERSION
    }
    assert expected - hooked == set()
