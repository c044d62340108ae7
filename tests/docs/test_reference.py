"""The reference pages have everything: it is looked for in other ways than they are made."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from generator import commands, measures, messages, pages, vocabulary

from pyvgpu import errors, names
from pyvgpu.cli.main import KUBECTL, PYVGPU

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).parent / "pyvgpu"
SOURCES = [
    file
    for folder in ("pyvgpu", "volumes", "deviceplugin", "controller")
    for file in sorted((ROOT / folder).rglob("*.py"))
]


def sections(page):
    """Return the text below each heading of the second level."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def reference():
    """Give the texts of all reference pages by their names."""
    return {name: make(ROOT) for name, make in pages.REFERENCE.items()}


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (f"{program.name} {name}", module)
        for program in (PYVGPU, KUBECTL)
        for name, module, _ in program.commands
    ],
)
def test_every_option_that_help_has_is_there(command, module):
    told = sections(commands.text(ROOT))[command]
    help_text = commands.parser_of(command, module).format_help()
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", help_text, re.MULTILINE))
    assert "--help" in options
    assert {it for it in options if f"`{it}`" not in told and f"`{it} " not in told} == set()


def test_help_of_a_real_command_is_what_the_page_has(reference):
    ran = subprocess.run(
        [PROGRAM, "run", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    told = sections(reference["reference/commands.md"])["pyvgpu run"]
    assert ran.stdout.splitlines()[0].removeprefix("usage: ") in told


def test_every_name_of_ours_is_there(reference):
    page = reference["reference/names.md"]
    ours = re.compile(r"\b((?:pyvgpu\.io|(?:gaia\.)?tencent\.com)/[a-z_-]*[a-z0-9])")
    found = set()
    for file in [*SOURCES, *sorted((ROOT / "deploy").rglob("*.yaml"))]:
        found |= set(ours.findall(file.read_text().replace("{names.DOMAIN}", "pyvgpu.io")))
    for name, value in vars(names).items():
        if name.isupper() and isinstance(value, str):
            found |= set(ours.findall(value))
    missing = {it for it in found if it not in page} - NO_NAMES
    assert missing == set(), "docs/generator/vocabulary.py says nothing of these"


NO_NAMES = {
    "pyvgpu.io/grants",  # the format of a file
    "pyvgpu.io/device-plugin",  # who reports an event
}


def test_every_variable_of_ours_is_there(reference):
    page = reference["reference/names.md"]
    found = set()
    for file in [*SOURCES, *sorted((ROOT / "csrc").rglob("*.c"))]:
        if "bench" not in file.parts:
            found |= set(re.findall(r'"((?:PYVGPU|SIDECAR)_[A-Z_]+)"', file.read_text()))
    assert {"PYVGPU_LOG", "PYVGPU_SIMULATED_MACHINES"} <= found
    assert {it for it in found if it not in page} == set()


def test_every_figure_that_the_code_names_is_there(reference):
    page = reference["reference/metrics.md"]
    found = set()
    for file in SOURCES:
        found |= set(re.findall(r"""["'](pyvgpu_[a-z0-9_]+)["']""", file.read_text()))
    assert len(found) > 40
    assert {it for it in found if f"`{it}`" not in page} == set()


def test_figures_are_what_a_program_shows():
    from pyvgpu.controller import metrics

    shown = metrics.WebhookMeter().text().decode()
    told = {it.name: it for it in measures.measures(ROOT) if "webhook" in it.program}
    for name, kind in re.findall(r"^# TYPE (pyvgpu_webhook_\w+) (\w+)$", shown, re.MULTILINE):
        assert told[name].kind == kind
    assert told["pyvgpu_webhook_reviews_total"].labels == ("path", "result")


def test_figures_are_of_a_program_that_is_known():
    assert {it.name for it in measures.measures(ROOT) if it.program == "Others"} == set()


def test_every_kind_of_error_says_what_to_do(reference):
    told = sections(reference["reference/messages.md"])["What kind it is"]
    text = "".join(file.read_text() for file in SOURCES)
    named = re.findall(r"^class (\w+)\((?:errors\.)?\w*Error\)", text, re.MULTILINE)
    kinds = {it.__name__ for it in messages.kinds(ROOT)}
    assert {"MirrorError", "RefusedError", "NotFoundError"} <= kinds & set(named)
    for kind in kinds:
        assert f"| `{kind}` |" in told
    assert all(messages.answer(it) for it in messages.kinds(ROOT))
    assert all(vars(errors)[it.__name__] is it for it in messages.ANSWERS)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["run", "--vmemory", "25%", "--", "true"], id="size"),
        pytest.param(["run", "--simulate", "nothing", "--", "true"], id="model"),
        pytest.param(["top", "--interval", "0"], id="interval"),
        pytest.param(["set", "nobody-is-called-so", "--vcore", "3"], id="name"),
        pytest.param(["mirror", "--driver-root", "/nowhere", "--dry-run"], id="driver"),
    ],
)
def test_what_a_command_says_is_there(arguments, reference, tmp_path):
    ran = subprocess.run(
        [PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    said = ran.stderr.splitlines()[-1].removeprefix("pyvgpu: ")
    rows = re.findall(
        rf"^\| `+ ?(.+?) ?`+ \| {ran.returncode} \|$",
        reference["reference/messages.md"],
        re.MULTILINE,
    )
    patterns = [".*".join(map(re.escape, row.replace("\\|", "|").split("…"))) for row in rows]
    assert [it for it in patterns if re.fullmatch(it, said)], said


def test_every_refusal_of_the_shim_is_there():
    told = set(messages.shim_says(ROOT))
    text = "".join((ROOT / file).read_text() for file in messages.SHIM_FILES)
    text = re.sub(r"^static void complain.*?^}", "", text, flags=re.MULTILINE | re.DOTALL)
    said = re.findall(r'(?:complain\(|region_fail\(reason)[^;]*?"((?:[^"\\]|\\.)*)"', text)
    assert len(said) > 15
    assert {it for it in said if messages.FORMAT.sub("…", it) not in told} == set()


def test_every_event_is_there(reference):
    from pyvgpu.deviceplugin import events

    told = sections(reference["reference/messages.md"])["Events"]
    for reason in [*events.Reason, "VGPUWaits", "VGPUPreempted"]:
        assert re.search(rf"^\| `{reason}` \| \S.+ \|$", told, re.MULTILINE), reason


def test_names_have_a_meaning_each():
    for rows in (vocabulary.RESOURCES, vocabulary.WRITTEN_ON_PODS, vocabulary.KEPT):
        assert all(all(row) for row in rows)
        assert len({row[0] for row in rows}) == len(rows)
