"""The check of words that `make lint` runs: what it finds, and what it lets pass."""

import pathlib
import runpy

import pytest

SCRIPT = pathlib.Path(__file__).parent.parent / ".ci" / "words.py"


@pytest.fixture(scope="module", name="find")
def fixture_find():
    findings = runpy.run_path(str(SCRIPT))["findings"]
    return lambda text: [(number, word) for number, word, _ in findings(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("a process who waits", [(1, "who")], id="a process"),
        pytest.param("/* fine\n * nobody waits */", [(2, "nobody")], id="its line"),
        pytest.param("self._is_told = True", [(1, "told")], id="part of an identifier"),
        pytest.param("class Told:", [(1, "told")], id="a class"),
        pytest.param("promised_vcore: int", [(1, "promised")], id="in another form"),
        pytest.param("self._doors = {}", [(1, "doors")], id="a metaphor"),
        pytest.param("def look(self):", [(1, "look")], id="a verb of many meanings"),
        pytest.param("flight_look(device)", [(1, "look")], id="the same in C"),
        pytest.param(
            "LOOK_SECONDS = 5.0  # between two looks, in seconds",
            [(1, "look"), (1, "looks")],
            id="the same as a noun",
        ),
        pytest.param("Who, and nobody", [(1, "who"), (1, "nobody")], id="two"),
    ],
)
def test_banned_words_are_found_with_their_line(find, text, found):
    assert find(text) == found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("users who share a device", id="people"),
        pytest.param("an admin,\n# who drains the node", id="people on the line before"),
        pytest.param('pwd.getpwnam("nobody")', id="a Unix user"),
        pytest.param("new Promise((done) => done())", id="JavaScript's class"),
        pytest.param("the whole shoulder", id="letters within words"),
        pytest.param("a notebook outdoors", id="metaphors within words"),
        pytest.param("look up a name, looks for it, and looked at its log", id="prepositions"),
        pytest.param(
            "an importer that looks\n * for an export", id="a preposition on the next line"
        ),
        pytest.param("pod_lookup.read() or look_up()", id="look-ups"),
    ],
)
def test_other_words_pass(find, text):
    assert find(text) == []
