"""Commands of the pages for one machine run as they stand, in a namespace, on a simulated device.

Their blocks have the mark `<!-- one machine -->`, or `<!-- simulator -->` where they need files
and runs of the reader's, which the tests make. `sudo` is a stub, `pyvgpu run` and `pyvgpu doctor`
get `--simulate`, and the programs of the reader print how much device memory they see.
"""

import os
import shlex
import sys
from pathlib import Path

import documented
import kit_records
import profiles
import pytest
import rights

pytestmark = [rights.needs_mounts, pytest.mark.slow]
ROOT = documented.ROOT
PYVGPU = Path(sys.executable).with_name("pyvgpu")
# Folders of the machine that pyvgpu writes to or reads: empty in the namespace.
FOLDERS = ("/run", "/tmp", "/var/tmp", "/dev/shm", "/etc/cdi")
# Hides FOLDERS, except for the paths in "$@", which may be below one of them.
APART = f"""
mount -t tmpfs none /mnt
for path in "$@"; do mkdir -p "/mnt$path"; mount --bind "$path" "/mnt$path"; done
for folder in {" ".join(FOLDERS)}; do
    [ ! -d $folder ] || mount -t tmpfs -o mode=1777 none $folder
done
for path in "$@"; do mkdir -p "$path"; mount --bind "/mnt$path" "$path"; done
cd "$PWD"
"""
# Lists everything with that name except for installed programs.
REMAINS = f"""
find {" ".join(FOLDERS)} ~ \\( -path {ROOT} -o -path {sys.prefix} -o -path "*/bin/pyvgpu" \\) \\
    -prune -o -name '*pyvgpu*' -print 2>/dev/null || true
"""
SUDO = '#!/bin/sh\nexec "$@"\n'
PROGRAM = f"""#!/bin/sh
case "$1 $2" in
"run "* | "doctor --prove") command=$1; shift; set -- "$command" --simulate h100 "$@" ;;
esac
exec {shlex.quote(str(PYVGPU))} "$@"
"""
MEMORY = 'import gpu\nprint("sees", gpu.Device().memory()[1] >> 20, "MiB")\n'


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def steps(page, wanted=documented.ONE_MACHINE):
    """Return the blocks of a page that have this mark, in order."""
    return [text for mark, _, text in documented.blocks(page) if mark == wanted]


@pytest.fixture
def follow(tmp_path):
    """Return a function that runs steps in a new namespace, and returns what they print."""
    home, folder = tmp_path / "home", tmp_path / "folder"
    executable(tmp_path / "bin/sudo", SUDO)
    executable(tmp_path / "bin/pyvgpu", PROGRAM)
    executable(home / "pyvgpu/bin/pip", '#!/bin/sh\necho pip "$@"\n')
    executable(folder / "evaluate", "#!/bin/sh\nexec python train.py\n")
    executable(tmp_path / "bin/jupyter", "#!/bin/sh\nexec python train.py\n")
    executable(tmp_path / "bin/ssh", '#!/bin/sh\nshift\nexec "$@"\n')
    for name in ("train.py", "sweep.py", "serve.py"):
        (folder / name).write_text(MEMORY)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYVGPU_", "XDG_", "CUDA_"))}
    environment = {
        **kept,
        "HOME": str(home),
        "PATH": f"{tmp_path / 'bin'}:{PYVGPU.parent}:{kept['PATH']}",
        "PYTHONPATH": str(ROOT / "examples/programs"),
    }

    def run(*scripts):
        apart = ("unshare", "--mount", "--propagation", "private", "bash", "-euc")
        values = map(str, (ROOT, sys.prefix, tmp_path))
        command = (*apart, APART + "\n".join(scripts), "bash", *values)
        return documented.output_of(command, folder, environment)

    return run


def test_a_workstation_from_the_first_run_to_the_removal(follow):
    _, run, folder, remove = steps(ROOT / "docs/start-workstation.md")
    said = follow(folder, run, "echo before", REMAINS, remove, "echo after", REMAINS)
    runs, _, rest = said.partition("before\n")
    assert runs == "sees 8192 MiB\nsees 8192 MiB\nsees 16201 MiB\n"
    before, _, after = rest.partition("after\n")
    assert {"/run/pyvgpu", "/dev/shm/pyvgpu-simulator-0"} <= set(before.splitlines())
    assert "would remove /run/pyvgpu: " in before
    assert "\nremoved /run/pyvgpu: " in before
    assert after == ""


def test_a_quota_of_the_workstation_is_proved(follow):
    prove, *_ = steps(ROOT / "docs/start-workstation.md")
    said = " ".join(follow(prove).split())
    assert "memory is held ok" in said


def test_the_demonstration_of_the_laptop_page(follow):
    (demo,) = steps(ROOT / "docs/start-laptop.md")
    assert "\n8 of 8 claims hold\n" in follow(demo)


def test_uninstall_of_all_users(follow):
    (remove,) = steps(ROOT / "docs/uninstall.md")
    said = follow("sudo install -d -m 1777 /run/pyvgpu", "pyvgpu run -- true", remove)
    assert said.count("\nremoved ") >= 2
    assert said.endswith("pip uninstall pyvgpu\n")


def alive(names):
    """Return a script that starts runs with these names, which end with the shell."""
    started = "\n".join(
        f"""pyvgpu run --name {name} --vmemory 4GiB -- sleep infinity &
until pyvgpu ps --quiet | grep -qx {name}; do :; done"""
        for name in names.split()
    )
    return f"trap 'kill $(jobs -p); wait' EXIT\n{started}" if names else ""


# Of each page the marked examples: the runs that they name, and what they print.
EXAMPLES = {
    "calibrate": [("", "Written")],
    "doctor": [("", "memory is held")],
    "mig": [("", "sees 2048 MiB\n")],
    "oversubscribe": [("", "sees 40960 MiB\nsees 20480 MiB\n")],
    "ps": [("eval", "\neval\n")],
    "replay": [("", "train.json")],
    "run": [("", "sees 8192 MiB\nsees 24302 MiB\nsees 2048 MiB\n")],
    "set": [("eval", "eval: vcore 20")],
    "sharing": [("", "sees 8192 MiB\n")],
    "support-bundle": [("", "/tmp/help.tar.gz")],
    "suspend": [("train", "train: resumed")],
    "top": [("eval", "1 run on 1 device")],
    "vcore": [
        ("train", "train: vcore 50"),
        ("", "sees 20480 MiB\nsees 40960 MiB\n"),
        ("answers training", "answers: vcore 20"),
    ],
}


def examples(page):
    """Return the examples of a page."""
    return steps(ROOT / f"docs/{page}.md", documented.SIMULATOR)


@pytest.fixture
def files(tmp_path):
    """Make the files that examples name."""
    folder = tmp_path / "folder"
    (folder / "results").mkdir(parents=True)
    kit_records.write(folder / "results/record.json", None)
    job = profiles.Profile(kernels=2, steps=1)
    for name in ("trace.json", "trace.json.gz", "train.json"):
        profiles.write_kineto(folder / name, profiles.kineto(job))
    profiles.write_nsys(folder / "serve.sqlite", job)


def test_marked_examples_are_known():
    pages = (page.stem for page in (ROOT / "docs").glob("*.md"))
    found = {page: len(texts) for page in pages if (texts := examples(page))}
    assert found == {page: len(known) for page, known in EXAMPLES.items()}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("page", "number"), [(page, n) for page, known in EXAMPLES.items() for n in range(len(known))]
)
def test_example_on_the_simulator(page, number, follow):
    runs, printed = EXAMPLES[page][number]
    assert printed in follow(alive(runs), examples(page)[number])
