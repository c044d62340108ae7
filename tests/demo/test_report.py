"""The HTML report of a demonstration: one self-contained page."""

import base64
import importlib.util
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from pyvgpu.demo import assertions, html_report
from pyvgpu.demo.observations import Observations, Role
from pyvgpu.errors import OutputError, UnavailableError, UsageError

from .observed import GOOD, PLAN, timed

pytestmark = pytest.mark.slow

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="pyvgpu[report] is not installed"
)


class Page(HTMLParser):
    """Collect a page's references and check that its elements are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.sources, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)
        for name, value in attributes:
            assert name not in ("href", "srcset", "style")
            if name == "src":
                self.sources.append(value)
        assert tag not in ("script", "link", "iframe", "object")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page(seen):
    return Page(html_report.page(seen, assertions.evaluate(seen), "2026-01-02 03:04"))


def pictures(found):
    begin = "data:image/svg+xml;base64,"
    return [base64.b64decode(x.removeprefix(begin)).decode() for x in found.sources]


@needs_matplotlib
def test_page_is_well_formed_and_self_contained():
    found = page(GOOD)
    assert len(found.sources) == 3
    for picture in pictures(found):
        ElementTree.fromstring(picture)
        outside = re.findall(r"""(?:href|src)=["']([^"'#][^"']*)""", picture)
        assert outside == []
    assert "8 of 8 claims hold" in found.text
    for claim, _ in assertions.CLAIMS:
        assert claim in found.text


@needs_matplotlib
def test_pictures_show_the_use_of_each_tenant():
    time, memory, quotas = pictures(page(timed(large=67.97)))
    assert all(word in time for word in ("small: 30", "large: 70", "idle"))
    assert "kill -9" in memory
    assert all(f"{role}" in memory for role in ("steady", "grower", "doomed"))
    assert all(word in quotas for word in ("large, time", "97.1 %", "grower, memory", "100.0 %"))


@needs_matplotlib
def test_failed_claim_is_marked_and_escaped():
    said = "<b>no & room</b>"
    failing = Observations(PLAN, remarks=((Role.STEADY, said),))
    text = html_report.page(failing, assertions.evaluate(failing), "now")
    assert "&lt;b&gt;no &amp; room&lt;/b&gt;" in text
    assert said not in text
    assert text.count("✗ failed") == 7
    assert Page(text).sources != []


@needs_matplotlib
def test_same_demonstration_gives_the_same_page():
    assert html_report.page(GOOD, (), "now") == html_report.page(GOOD, (), "now")


@needs_matplotlib
def test_report_is_written_or_the_error_is_reported(tmp_path):
    html_report.check_possible(tmp_path / "report.html")
    html_report.write(tmp_path / "report.html", GOOD, assertions.evaluate(GOOD))
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(OutputError, match="cannot be written: no such file|No such file"):
        html_report.write(tmp_path / "gone" / "report.html", GOOD, ())
    for wrong in (tmp_path, tmp_path / "gone" / "report.html"):
        with pytest.raises(UsageError, match="must name a file in an existing folder"):
            html_report.check_possible(wrong)


def test_missing_matplotlib_names_the_extra_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match=r"pip install 'pyvgpu\[report\]'"):
        html_report.check_possible(tmp_path / "report.html")
