"""The status page in a real browser: content, layout, accessibility, and updates."""

import importlib.resources
import json
import os
import re
from pathlib import Path

import pytest
import status_node
import status_pictures
from status_node import GIB, Tenant
from status_pictures import DESKTOP, PHONE

pytestmark = pytest.mark.browser

BOTH = pytest.mark.parametrize("document", ["node", "cluster"])
THEMES = pytest.mark.parametrize(
    ("colours", "size"),
    [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE), ("dark", PHONE)],
    ids=["light", "dark", "phone-light", "phone-dark"],
)

# Contrast ratio of foreground and background, as WCAG defines it.
CONTRAST = """(pairs) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((it) => {
      const part = it / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return pairs.map(([front, what, back]) => {
    const of = (where, name) => getComputedStyle(document.querySelector(where))[name];
    const [one, two] = [light(of(front, what)), light(of(back, "backgroundColor"))];
    return [front, (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05)];
  });
}"""


def percent(ratio):
    return f"{int(100 * ratio + 0.5)} %"


def share(ratio):
    return f"{100 * ratio:.1f} %" if 0 < ratio < 0.1 else percent(ratio)


def size(number):
    for unit, bits in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        found = number / 2**bits
        if found >= 1 or unit == "MiB":
            text = f"{found:.0f}" if found >= 100 else f"{found:.1f}".removesuffix(".0")
            return f"{text} {unit}"
    raise AssertionError(number)


@BOTH
@THEMES
def test_page_has_no_accessibility_violations(serve, opened, document, colours, size):
    page = opened(serve(status_pictures.document(document)).address, size, colours)
    axe = importlib.resources.files("axe_playwright_python") / "axe.min.js"
    page.evaluate(axe.read_text())
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    wrong = [
        (violation["id"], [one["html"] for one in violation["nodes"][:3]])
        for violation in found["violations"]
    ]
    assert wrong == []
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_drawings_have_enough_contrast(serve, opened, colours):
    page = opened(serve(status_pictures.node()).address, colours=colours)
    pairs = [
        (".meter.time > .fill", "backgroundColor", ".meter.time"),
        (".meter.memory > .fill", "backgroundColor", ".meter.memory"),
        (".meter > .mark", "backgroundColor", ".meter"),
        (".chart.time .line", "stroke", ".card"),
        (".chart.memory .line", "stroke", ".card"),
        ("#theme", "color", "header"),
    ]
    for what, ratio in page.evaluate(CONTRAST, pairs):
        assert ratio >= 3, what


def test_page_shows_the_numbers_of_the_document(serve, opened):
    document = status_pictures.node()
    page = opened(serve(document).address)
    assert page.title() == "(2) gpu-node-7 · pyvgpu"
    for device in document["devices"]:
        card = page.get_by_role("region", name=f"{device['label']} {device['model']}")
        text = card.inner_text()
        used, allocated = percent(device["used"]), percent(device["allocated"])
        assert f"{used} used, {allocated} allocated" in text
        held = f"{size(device['usedBytes'])} used, {size(device['allocatedBytes'])} allocated of"
        assert f"{held} {size(device['memoryBytes'])}" in text
        for one in device["containers"]:
            row = card.get_by_role("row").filter(has_text=one["pod"]).inner_text()
            assert f"{share(one['used'])} of {percent(one['allocated'])}" in row
            assert f"{size(one['usedBytes'])} of {size(one['allocatedBytes'])}" in row
            assert one["state"] in row
    for event in document["events"]:
        assert event["text"] in page.get_by_role("region", name="Events").inner_text()


def test_bars_and_lines_are_as_long_as_the_numbers(serve, opened):
    document = status_pictures.node()
    page = opened(serve(document).address)
    device, card = document["devices"][0], page.locator(".device").first
    fill, mark = card.locator(".gauges .meter.time > *").all()
    whole = card.locator(".gauges .meter.time").bounding_box()
    assert fill.bounding_box()["width"] == pytest.approx(whole["width"] * device["used"], abs=1)
    at = mark.bounding_box()["x"] - whole["x"]
    assert at == pytest.approx(whole["width"] * device["allocated"], abs=2)
    drawn = card.locator(".gauges .chart.time .line").get_attribute("d")
    heights = [float(word.split(",")[1]) for word in drawn.removeprefix("M").split("L")]
    wanted = [100 - sample / 10 for sample in device["lines"]["used"]]
    assert heights == pytest.approx(wanted, abs=0.06)


def test_the_last_day_is_chosen_and_remembered(serve, opened):
    document = json.loads(json.dumps(status_pictures.node()))
    document["devices"][0]["day"] = {
        "seconds": 300,
        "used": [100, None, 300, 400],
        "memoryMiB": [1, None, 2, 3],
    }
    page = opened(serve(document).address)
    chart = page.locator(".device").first.locator(".gauges .chart.time")
    minutes = chart.locator(".line").get_attribute("d")
    page.get_by_role("button", name="Charts: last minutes").click()
    day = chart.locator(".line").get_attribute("d")
    assert day.count("M") == 2  # a gap, where nothing was measured
    assert [float(point.split(",")[1]) for point in re.split("[ML]", day)[1:]] == [90, 70, 60]
    assert "in the last 20 min" in chart.get_attribute("aria-label")
    page.reload()
    page.wait_for_selector("#view:not([hidden])")
    assert chart.locator(".line").get_attribute("d") == day
    page.get_by_role("button", name="Charts: last day").click()
    assert chart.locator(".line").get_attribute("d") == minutes


def test_cluster_page_shows_node_usage_and_why_pods_wait(serve, opened):
    document = status_pictures.cluster()
    page = opened(serve(document).address)
    nodes = page.get_by_role("region", name="Nodes", exact=True)
    for node in document["nodes"]["rows"]:
        row = nodes.get_by_role("row").filter(
            has=page.get_by_role("link", name=node["name"], exact=True)
        )
        text = row.inner_text()
        assert f"{percent(node['allocated'] / 8)} allocated" in text
        assert node["state"] in text
    waits = page.get_by_role("region", name="Pending pods").inner_text()
    for pod in document["waiting"]["rows"]:
        assert pod["pod"] in waits
        assert pod["why"] in waits
    assert "20 min" in waits


def test_page_works_by_keyboard_alone(serve, opened):
    node, whole = status_pictures.node(), status_pictures.cluster()
    shown = serve(lambda asked: node if asked.query.get("node") else whole)
    page = opened(shown.address)

    def on():
        return page.evaluate("document.activeElement.id || document.activeElement.textContent")

    page.keyboard.press("Tab")
    assert on() == "Skip to content"
    assert page.get_by_text("Skip to content").is_visible()
    seen = []
    for _ in range(6):
        page.keyboard.press("Tab")
        seen.append(on())
    assert seen == ["home", "span", "theme", "search", "show", "gpu-node-1"]
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.wait_for_selector(".device")
    assert page.url.endswith("#node=gpu-node-1")
    page.get_by_role("link", name="All nodes").press("Enter")
    page.wait_for_selector(".nodes")
    page.keyboard.press("Tab")
    page.get_by_role("link", name="Skip to content").press("Enter")
    assert on() == "main"


def test_colours_are_chosen_and_remembered(serve, opened):
    page = opened(serve(status_pictures.node()).address, colours="light")

    def ground():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    button = page.locator("#theme")
    for name in ("Theme: light", "Theme: dark"):
        button.click()
        assert button.get_attribute("aria-label") == name
    dark = ground()
    assert dark != light
    page.reload()
    page.wait_for_selector("#view:not([hidden])")
    assert ground() == dark


@pytest.mark.parametrize(("motion", "moves"), [("reduce", False), ("no-preference", True)])
def test_animations_respect_reduced_motion(serve, opened, motion, moves):
    page = opened(serve(status_pictures.node()).address, reduced_motion=motion)
    taken = page.evaluate("getComputedStyle(document.querySelector('.fill')).transitionDuration")
    assert (taken != "0s") is moves


COUNT = """() => {
  window.touched = new Set();
  new MutationObserver((all) => all.forEach((it) => {
    const at = it.target.parentElement ?? it.target;
    window.touched.add(at.closest("tr")?.dataset.key ?? at.closest("[id]")?.id ?? "?");
  })).observe(document.getElementById("view"), {
    subtree: true, childList: true, attributes: true, characterData: true,
  });
}"""


# Fetch the document without its ETag; return the keys of the redrawn elements.
REFETCH = """async () => {
  tag = null;
  await ask();
  await new Promise((done) => setTimeout(done));
  return [...window.touched];
}"""


def test_only_the_changed_one_of_128_containers_is_redrawn(serve, opened):
    tenants = tuple(
        Tenant(f"team/pod-{number}/main", number % 2, 1, GIB // 2, 0.005, 0.002)
        for number in range(128)
    )
    document = status_node.Node(tenants).document()
    shown = serve(document)
    page = opened(shown.address)
    assert page.locator(".device tbody tr").count() == 128
    page.evaluate(COUNT)
    assert page.evaluate(REFETCH) == []
    other = json.loads(json.dumps(document))
    other["devices"][0]["containers"][7]["usedBytes"] += 100 << 20
    pod = other["devices"][0]["containers"][7]["pod"]
    shown.document = other
    assert page.evaluate(REFETCH) == [f"team/{pod}/main"]


def test_unchanged_document_is_answered_with_304(serve, opened):
    shown = serve(status_pictures.node())
    page = opened(shown.address)
    with page.expect_response("**/status.json?*") as answered:
        page.evaluate("void ask()")
    assert answered.value.status == 304
    assert "if-none-match" in shown.asked[-1].fields


def test_failed_refresh_shows_an_alert_until_it_succeeds(serve, opened):
    from pyvgpu.status import site

    shown = serve(status_pictures.node())
    page = opened(shown.address)
    shown.refusal = site.refusal(503, "the nodes have not been read yet")
    page.evaluate("void ask()")
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "the nodes have not been read yet" in alert.inner_text()
    assert page.locator(".device").count() == 4  # the last data stays visible
    shown.refusal = None
    page.evaluate("void ask()")
    alert.wait_for(state="hidden")
    page.console_errors[:] = [
        console_error for console_error in page.console_errors if "503" not in console_error
    ]


def test_pod_names_are_shown_as_plain_text(serve, opened):
    name = "<img src=x onerror=alert(1)>"
    document = json.loads(json.dumps(status_pictures.node()))
    document["devices"][0]["containers"][0]["pod"] = name
    document["problems"][0]["text"] = f"<script>alert(1)</script>{name}"
    page = opened(serve(document).address)
    assert name in page.locator(".device").first.inner_text()
    assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("name", status_pictures.PICTURES)
def test_picture_can_be_taken(serve, opened, tmp_path, name):
    """With PYVGPU_PICTURES the pictures go to docs/; without, they go to a temporary folder."""
    from PIL import Image, PngImagePlugin

    of, colours, size = status_pictures.PICTURES[name]
    page = opened(serve(status_pictures.document(of)).address, size, colours)
    taken = tmp_path / "taken.png"
    page.screenshot(path=taken)
    folder = Path(os.environ.get("PYVGPU_PICTURES") or tmp_path)
    note = PngImagePlugin.PngInfo()
    note.add_text(status_pictures.OF, status_pictures.digest(name))
    with Image.open(taken) as picture:
        assert picture.size == size
        few = picture.convert("RGB").quantize(255, dither=Image.Dither.NONE)
        assert len(few.getcolors()) > 20  # there is something on it
        few.save(folder / f"{name}.png", optimize=True, pnginfo=note)
