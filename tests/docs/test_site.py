"""The documentation site: navigation, rewritten links, copy buttons, pictures.

`make docs` builds the site and fails at pages outside the navigation and at broken links and
anchors. These tests check what the build cannot.
"""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from generator import copying, links, navigation, pages

ROOT = Path(__file__).parents[2]
TEXTS = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
TROUBLE = TEXTS["troubleshooting.md"]
OUTSIDE = {  # all external links of the pages
    "https://github.com/cncf-tags/container-device-interface",
    "https://github.com/dequelabs/axe-core",
    "https://keepachangelog.com/en/1.1.0/",
    "https://semver.org/spec/v2.0.0.html",
}


def test_page_is_placed_by_its_nav_line():
    texts = {
        "b.md": "<!-- nav: In a cluster, 20 -->\n\n# B\n",
        "a.md": "<!-- nav: In a cluster, 30 -->\n\n# A\n",
        "c.md": "<!-- nav: Get started, 5 -->\n\n# C\n",
    }
    assert navigation.navigation(texts) == [
        {"Get started": ["c.md"]},
        {"In a cluster": ["b.md", "a.md"]},
    ]


def test_page_without_a_nav_line_goes_into_more():
    assert navigation.navigation({"new.md": "# New\n"}) == [{"More": ["new.md"]}]


def test_unknown_section_is_refused():
    with pytest.raises(navigation.NavigationError, match=r"docs/x\.md: nav: 'Nowhere': must be"):
        navigation.navigation({"x.md": "<!-- nav: Nowhere, 1 -->\n\n# X\n"})


def test_every_page_is_in_the_navigation():
    sections = navigation.navigation(TEXTS)
    listed = [page for section in sections for found in section.values() for page in found]
    assert sorted(listed) == sorted(TEXTS)


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        pytest.param("<!-- nav: Trouble, 5, search: 2.5 -->\n\n# X\n", 2.5, id="given"),
        pytest.param("<!-- nav: Trouble, 5 -->\n\n# X\n", 1, id="usual"),
        pytest.param("<!-- nav: Contributing, 5 -->\n\n# X\n", 0.3, id="of its section"),
        pytest.param("# X\n", 0.2, id="of the section More"),
    ],
)
def test_search_ranks_a_page_by_its_factor(text, factor):
    assert navigation.boost(text) == factor


def test_nav_line_is_removed_from_the_page():
    assert navigation.without_line("<!-- nav: More, 1 -->\n\n# X\n") == "# X\n"


@pytest.mark.parametrize(
    ("page", "link", "leads"),
    [
        pytest.param("agent.md", "run.md#limits", "run.md#limits", id="to a page"),
        pytest.param("agent.md", "#rights", "#rights", id="within the page"),
        pytest.param("index.md", "docs/run.md", "run.md", id="from the README"),
        pytest.param("agent.md", "../CONTRIBUTING.md#words", "contributing.md#words", id="beside"),
        pytest.param("contributing.md", "CHANGELOG.md", "changelog.md", id="between those beside"),
        pytest.param(
            "memory.md",
            "../csrc/shim/cuda/reviewed.def",
            "source/csrc/shim/cuda/reviewed.def.md",
            id="to a file",
        ),
        pytest.param("agent.md", "../csrc/nothing.c", "../csrc/nothing.c", id="to nothing"),
        pytest.param("agent.md", "mailto:a@b", "mailto:a@b", id="elsewhere"),
    ],
)
def test_links_are_rewritten_for_the_site(page, link, leads):
    assert pages.target(ROOT, page, link) == leads


def test_links_in_code_blocks_are_kept():
    text = "[a](b.md)\n\n```text\n[a](b.md)\n```\n\n[a](b.md)\n"
    assert links.rewritten(text, str.upper) == (
        "[a](B.MD)\n\n```text\n[a](b.md)\n```\n\n[a](B.MD)\n"
    )


def test_link_labelled_with_its_file_gets_the_page_title():
    text = "[run.md](run.md#limits), [it](run.md), [no.md](no.md)\n"
    titles = {"run.md#limits": "`pyvgpu run`"}
    assert links.labelled(text, titles.get) == (
        "[`pyvgpu run`](run.md#limits), [it](run.md), [no.md](no.md)\n"
    )


def test_button_copies_commands_without_prompts_and_output():
    block = "$ pyvgpu ps\nnothing\n$ python -c '\n> print(\"a\")'\na\n"
    assert copying.commands(block) == "pyvgpu ps\npython -c '\nprint(\"a\")'"
    content = f"{copying.SHOWN}><pre>..."
    made = copying.with_commands(content, f"```console\n{block}```\n")
    assert made.startswith(f'{copying.SHOWN} data-copy="pyvgpu ps\n')
    assert "print(&quot;a&quot;)" in made


def test_file_that_contains_a_fence_is_shown_whole(tmp_path):
    (tmp_path / "x.md").write_text("```sh\ntrue\n```\n")
    assert links.shown(tmp_path, "x.md") == "# x.md\n\n````text\n```sh\ntrue\n```\n\n````\n"


def test_external_links_are_known():
    found = set()
    for text in [*TEXTS.values(), *((ROOT / file).read_text() for file in pages.BESIDE)]:
        found |= set(re.findall(r"https?://[^\s)>`'\"]+", re.sub(links.FENCE, "", text)))
    assert {link for link in found if not re.match(r"https?://(\d|localhost|\[)", link)} == OUTSIDE


@pytest.mark.parametrize("name", ["call", "pod", "job", "launch"])
def test_picture_has_a_description_and_a_dark_mode(name):
    text = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
    picture = ElementTree.fromstring(text)
    parts = {element.tag.rpartition("}")[2]: element.text for element in picture if element.text}
    assert parts["title"]
    assert len(parts["desc"]) > 100
    assert "prefers-color-scheme: dark" in parts["style"]
    assert "http://www.w3.org/2000/svg" in text
    assert len(re.findall(r"https?://", text)) == 1  # nothing is loaded
    light, _, dark = parts["style"].partition("@media")
    used = set(re.findall(r'class="([\w-]+)', text))
    assert {css_class for css_class in used if f".{css_class}" not in light} == set()
    colours = set(re.findall(r"\.([\w-]+) \{[^}]*(?:fill|stroke): #", light))
    assert {colour for colour in colours if f".{colour} " not in dark} == set()


def test_hami_page_has_every_converted_annotation():
    from pyvgpu.controller.webhook import conversions

    rows = re.findall(r"^\| (.+) \| (.+) \|$", TEXTS["migrate-hami.md"], re.MULTILINE)
    for theirs, ours, _ in conversions._ANNOTATIONS:
        word = theirs.rpartition("/")[2]
        assert [row for row in rows if word in row[0] and ours.rpartition("/")[2] in row[1]], (
            theirs
        )


def test_troubleshooting_names_existing_events():
    from generator import messages

    known = {name for name, _ in messages.events(ROOT)}
    named = set(re.findall(r"\bVGPU[A-Z]\w+", TROUBLE))
    assert len(named) >= 3
    assert named <= known


def test_refusals_in_troubleshooting_are_the_shims():
    from generator import messages

    said = re.findall(
        r"^### `CUDA and NVML are refused: (.+)`$", TEXTS["troubleshooting.md"], re.M
    )
    assert len(said) >= 3
    patterns = [say.replace("…", "").strip(" :';") for say in messages.shim_says(ROOT)]
    for words in said:
        core = words.strip(". ")
        assert [pattern for pattern in patterns if core in pattern or pattern.startswith(core)], (
            words
        )


def test_files_named_in_contributing_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    begin = page.index("## Where to change what")
    rows = re.findall(r"^\| [a-z].*\|$", page[begin : page.index("\n## ", begin + 1)], re.M)
    rows = [row for row in rows if not row.startswith("| change |")]
    assert len(rows) >= 20
    for row in rows:
        named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", row)
        assert len(named) >= 2, row
        assert [place for place in named if not (ROOT / place).exists()] == []
        for place, table in re.findall(r"`([\w./-]+)`: a row of (?:its )?`([A-Z]+)`", row):
            assert table in (ROOT / place).read_text(), row


def test_modules_named_in_the_design_exist():
    named = re.findall(r"`([a-z_]+/[a-z_]+)`", TEXTS["design.md"])
    assert len(named) >= 8
    folders = ("csrc", "pyvgpu", "volumes", "deviceplugin", "controller")
    sources = [
        path.with_suffix("").as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix in (".c", ".py")
    ]
    assert [
        name
        for name in named
        if not (ROOT / name).is_dir() and not any(path.endswith(f"/{name}") for path in sources)
    ] == []


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda page: page.name
)
def test_rows_of_a_table_have_the_columns_of_its_header(page):
    tables = re.findall(r"(?:^\|.*\n)+", page.read_text(), re.M)
    for table in tables:
        header, *rows = table.splitlines()
        columns = len(re.findall(r"(?<!\\)\|", header))
        assert [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) != columns] == []
