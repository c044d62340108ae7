"""The generated reference pages are complete, by other searches than the generator's own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from generator import commands, measures, messages, navigation, pages, vocabulary

from pyvgpu import names
from pyvgpu.cli.main import KUBECTL, PYVGPU

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).parent / "pyvgpu"
SOURCES = [
    file
    for folder in ("pyvgpu", "volumes", "deviceplugin", "controller")
    for file in sorted((ROOT / folder).rglob("*.py"))
]


def sections(page):
    """Return the text below each second-level heading."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def reference():
    """Return the texts of all reference pages by name."""
    return {name: make(ROOT) for name, make in pages.REFERENCE.items()}


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (f"{program.name} {name}", module)
        for program in (PYVGPU, KUBECTL)
        for name, module, _ in program.commands
    ],
)
def test_every_option_is_in_the_reference(command, module):
    section = sections(commands.text(ROOT))[command]
    help_text = commands.parser_of(command, module).format_help()
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", help_text, re.MULTILINE))
    assert "--help" in options
    missing = {
        option
        for option in options
        if f"`{option}`" not in section and f"`{option} " not in section
    }
    assert missing == set()


@pytest.mark.slow
def test_usage_in_the_reference_matches_the_command(reference):
    ran = subprocess.run(
        [PROGRAM, "run", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    section = sections(reference["reference/commands.md"])["pyvgpu run"]
    assert ran.stdout.splitlines()[0].removeprefix("usage: ") in section


@pytest.mark.parametrize("name", pages.REFERENCE)
def test_written_reference_is_up_to_date(name, reference):
    written = (ROOT / "docs" / name).read_text()
    made = navigation.without_line(written)
    usage = re.compile(r"```text\n.*?```", re.DOTALL)  # which each Python wraps differently
    assert usage.sub("", made) == usage.sub("", reference[name]), "make reference"


def test_every_pyvgpu_name_is_in_the_reference(reference):
    page = reference["reference/names.md"]
    ours = re.compile(r"\b((?:pyvgpu\.io|(?:gaia\.)?tencent\.com)/[a-z_-]*[a-z0-9])")
    found = set()
    for file in [*SOURCES, *sorted((ROOT / "deploy").rglob("*.yaml"))]:
        found |= set(ours.findall(file.read_text().replace("{names.DOMAIN}", "pyvgpu.io")))
    for name, value in vars(names).items():
        if name.isupper() and isinstance(value, str):
            found |= set(ours.findall(value))
    missing = {word for word in found if word not in page} - NO_NAMES
    assert missing == set(), "docs/generator/vocabulary.py lacks these"


NO_NAMES = {
    "pyvgpu.io/grants",  # the format of a file
    "pyvgpu.io/device-plugin",  # the reportingController of events
}


def test_every_environment_variable_is_in_the_reference(reference):
    page = reference["reference/names.md"]
    found = set()
    for file in [*SOURCES, *sorted((ROOT / "csrc").rglob("*.c"))]:
        if "bench" not in file.parts:
            found |= set(re.findall(r'"((?:PYVGPU|SIDECAR)_[A-Z_]+)"', file.read_text()))
    assert {"PYVGPU_LOG", "PYVGPU_SIMULATED_MACHINES"} <= found
    assert {word for word in found if word not in page} == set()


def test_every_metric_in_the_code_is_in_the_reference(reference):
    page = reference["reference/metrics.md"]
    found = set()
    for file in SOURCES:
        found |= set(re.findall(r"""["'](pyvgpu_[a-z0-9_]+)["']""", file.read_text()))
    assert len(found) > 40
    assert {word for word in found if f"`{word}`" not in page} == set()


@pytest.mark.slow
def test_metrics_match_a_programs_output():
    from pyvgpu.controller.webhook.shell.webhook_metrics import WebhookMeter

    shown = WebhookMeter().text().decode()
    documented = {
        measure.name: measure
        for measure in measures.measures(ROOT)
        if "webhook" in measure.program
    }
    for name, kind in re.findall(r"^# TYPE (pyvgpu_webhook_\w+) (\w+)$", shown, re.MULTILINE):
        assert documented[name].kind == kind
    assert documented["pyvgpu_webhook_reviews_total"].labels == ("path", "result")


@pytest.mark.slow
def test_every_metric_belongs_to_a_program():
    assert {
        measure.name for measure in measures.measures(ROOT) if measure.program == "Others"
    } == set()


def test_every_exit_code_is_explained(reference):
    section = sections(reference["reference/messages.md"])["Exit codes"]
    text = "".join(file.read_text() for file in SOURCES)
    named = re.findall(r"^class (\w+)\((?:errors\.)?\w*Error\)", text, re.MULTILINE)
    kinds = messages.kinds(ROOT)
    assert {"MirrorError", "RefusedError", "NotFoundError"} <= {
        kind.__name__ for kind in kinds
    } & set(named)
    assert {kind.exit_code for kind in kinds} == set(messages.CODES)
    for number in messages.CODES:
        assert re.search(rf"^\| {number} \| \w.+ \| \w.+ \|$", section, re.MULTILINE)


def test_messages_are_sorted_and_name_no_class(reference):
    page = reference["reference/messages.md"]
    rows = re.findall(r"^\| `+ ?(.+?) ?`+ \| ([\d, ]+) \| (\S.+) \|$", page, re.MULTILINE)
    texts = [text.replace("\\|", "|") for text, *_ in rows]
    assert len(texts) > 400
    assert texts == sorted(texts, key=lambda text: (messages.place(text), text))
    assert len(set(texts)) == len(texts)
    names = {kind.__name__ for kind in messages.kinds(ROOT)}
    assert [name for name in names if re.search(rf"\b{name}\b", page)] == []


def test_each_advice_is_used():
    used = {messages.answer(message) for message in messages.messages(ROOT)}
    assert {advice for _, advice in messages.ADVICE} <= used
    assert set(messages.FOLDERS.values()) <= used


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["run", "--vmemory", "25%", "--", "true"], id="size"),
        pytest.param(["run", "--simulate", "nothing", "--", "true"], id="model"),
        pytest.param(["top", "--interval", "0"], id="interval"),
        pytest.param(["set", "no-such-run", "--vcore", "3"], id="name"),
        pytest.param(["mirror", "--driver-root", "/nowhere", "--dry-run"], id="driver"),
        pytest.param(["support-bundle", "--output", "/nowhere/x.tar.gz"], id="file"),
    ],
)
def test_error_messages_are_in_the_reference(arguments, reference, tmp_path):
    ran = subprocess.run(
        [PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    said = ran.stderr.splitlines()[-1].removeprefix("pyvgpu: ")
    rows = re.findall(
        rf"^\| `+ ?(.+?) ?`+ \| (?:\d+, )*{ran.returncode}(?:, \d+)* \| \S.+ \|$",
        reference["reference/messages.md"],
        re.MULTILINE,
    )
    patterns = [".*".join(map(re.escape, row.replace("\\|", "|").split("…"))) for row in rows]
    assert [pattern for pattern in patterns if re.fullmatch(pattern, said)], said


def test_every_refusal_of_the_shim_is_in_the_reference():
    listed = set(messages.shim_says(ROOT))
    text = "".join((ROOT / file).read_text() for file in messages.SHIM_FILES)
    text = re.sub(r"^void shim_complain.*?^}", "", text, flags=re.MULTILINE | re.DOTALL)
    said = re.findall(r'(?:complain\(|region_fail\(reason)[^;]*?"((?:[^"\\]|\\.)*)"', text)
    assert len(said) > 15
    assert {
        refusal for refusal in said if messages.FORMAT.sub("…", refusal) not in listed
    } == set()


def test_every_event_reason_is_in_the_reference(reference):
    from pyvgpu.deviceplugin.grants import events

    section = sections(reference["reference/messages.md"])["Events"]
    for reason in [*events.Reason, "VGPUWaits", "VGPUPreempted"]:
        assert re.search(rf"^\| `{reason}` \| \S.+ \|$", section, re.MULTILINE), reason


def test_every_name_has_one_meaning():
    for rows in (vocabulary.RESOURCES, vocabulary.WRITTEN_ON_PODS, vocabulary.KEPT):
        assert all(all(row) for row in rows)
        assert len({row[0] for row in rows}) == len(rows)
