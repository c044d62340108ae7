"""Commands in README.md and docs/ are valid: options, make targets and paths exist.

test_readme runs `console` blocks and compares their output. A block of `sh` is an example with
files and pods of the reader's. These tests check what needs no such objects: options by the parser
itself, make targets, and paths of this project.

Pages that begin with `start-` are complete instructions for a bare machine. Above each of their
`sh` blocks a mark names its runner: `<!-- cluster -->` for the e2e install suite,
`<!-- one machine -->` and `<!-- simulator -->` for test_one_machine, `<!-- wheels -->` for
tests/wheels, or `<!-- not run: WHY -->`. On every page test_stand_ins runs the `sh` blocks that
nothing else runs, with stand-ins for the programs that they call.
"""

import re
import shlex
from pathlib import Path

import documented
import pytest

from pyvgpu import errors
from pyvgpu.cli.main import KUBECTL, PYVGPU, whole

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("pyvgpu", "kubectl", "make", "ctr", "pip", "sudo", "helm", "docker", "podman")
ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", ")", "2>"}
PARSERS = {program.name: whole(program) for program in (PYVGPU, KUBECTL)}
RUN = (documented.CLUSTER, documented.ONE_MACHINE, documented.SIMULATOR, documented.WHEELS)
MARK = re.compile(rf"{'|'.join(RUN)}|not run: \S.+")


def blocks(page):
    """Yield the mark, the language and the text of each block with commands on a page."""
    for mark, language, text in documented.blocks(page):
        if language in ("sh", "console"):
            yield mark, language, text


def commands(page):
    """Yield the words of every simple command in a page's blocks."""
    for _, language, text in blocks(page):
        if language == "console":
            lines = re.findall(r"^\$ (.*(?:\n> .*)*)", text, re.MULTILINE)
            text = "\n".join(line.replace("\n> ", "\n") for line in lines)
        yield from simple(text)


def simple(text):
    """Yield the words of each simple command of a script, split at operators and newlines."""
    text = re.sub(r"\s+#\s.*$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace = " \t"
    lexer.commenters = ""
    lexer.wordchars += ":@%+^$\\{}"
    words = []
    for word in [*lexer, "\n"]:
        if word in ENDS or word == "\n":
            yield from [words] if words else []
            words = []
        else:
            words.append(word)


def parse(words):
    """Parse a command's options with the program's own parser."""
    program, given = (PYVGPU, words[1:]) if words[0] == "pyvgpu" else (KUBECTL, words[2:])
    if given[0] not in ("--version", "--help"):
        PARSERS[program.name].parse_args(given)


def target_of(words):
    return [word for word in words[1:] if "=" not in word and not word.startswith("-")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_documented_options_exist(page):
    for words in commands(page):
        while words and re.match(r"[A-Z_]+=|sudo$|env$|do$|until$|exec$|grep$", words[0]):
            words = words[1:]
        given = words[1:] if words[:1] == ["pyvgpu"] else words[2:]
        called = words[:1] == ["pyvgpu"] or words[:2] == ["kubectl", "vgpu"]
        if called and given and not given[0].isupper():
            try:
                parse(words)
            except errors.UsageError as exc:
                pytest.fail(f"{page.name}: {' '.join(words)}: {exc}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_root_finds_pyvgpu_where_the_pages_install_it(page):
    """Sudo searches only its secure_path, in which a virtual environment is not."""
    for words in commands(page):
        assert words[:2] != ["sudo", "pyvgpu"], " ".join(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_documented_paths_and_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    for words in commands(page):
        if words[0] == "make":
            for target in target_of(words):
                assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), words
        for word in words:
            if word.startswith(("deploy/", "docs/", "benchmarks/", "examples/", "tests/")):
                assert (ROOT / word).exists(), f"{page.name}: {' '.join(words)}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem.startswith("start-")], ids=lambda page: page.stem
)
def test_each_step_of_a_start_page_is_run_or_says_why_not(page):
    found = list(blocks(page))
    assert len(found) >= 3
    for mark, language, text in found:
        if language != "console":
            assert MARK.fullmatch(mark), f"{page.name}: block without a mark:\n{text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_block_of_commands_has_a_language(page):
    """Else no test would run it."""
    for _, language, text in documented.blocks(page):
        first = text.split(maxsplit=1)[:1]
        assert language or not first or first[0].removeprefix("$") not in PROGRAMS, text


def test_words_of_a_script_are_found():
    text = "A=1 pyvgpu ps | grep -q x && pyvgpu top --once   # a poll\nmake e2e SUITE=dra\n"
    assert list(simple(text)) == [
        ["A=1", "pyvgpu", "ps"],
        ["grep", "-q", "x"],
        ["pyvgpu", "top", "--once"],
        ["make", "e2e", "SUITE=dra"],
    ]


def test_unknown_option_is_found():
    with pytest.raises(errors.UsageError, match="--nothing"):
        parse(["pyvgpu", "ps", "--nothing"])


def test_pages_have_commands():
    found = [words for page in PAGES for words in commands(page)]
    assert sum(words[0] == "pyvgpu" for words in found) > 40
    assert sum(words[0] == "kubectl" for words in found) > 10
