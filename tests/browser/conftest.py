"""Headless Chromium, and the status page in it."""

import contextlib
import dataclasses
import shutil
from typing import Any

import pytest
import status_pictures

from pyvgpu.http import endpoints, http_messages
from pyvgpu.status import site

SECONDS = 30


@pytest.fixture(scope="session")
def chromium():
    """Start this machine's Chromium; skip if there is none."""
    from playwright import sync_api

    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        # Chromium has no sandbox as root, and containers have little shared memory.
        started = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@dataclasses.dataclass
class Shown:
    """A served status page; a test may replace its document at any time."""

    document: dict[str, Any]
    port: int = 0
    refusal: http_messages.HttpResponse | None = None
    asked: list[endpoints.HttpRequest] = dataclasses.field(default_factory=list)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}/status"

    def answer(self, asked):
        self.asked.append(asked)
        if self.refusal is not None:
            return self.refusal
        found = self.document
        return site.answer(asked, found(asked) if callable(found) else found)


@pytest.fixture
def serve():
    """Return a function that serves a document."""
    with contextlib.ExitStack() as stack:

        def begin(document):
            shown = Shown(document)
            routes = endpoints.Pages(lambda: b"", more=site.routes(shown.answer))
            shown.port = stack.enter_context(endpoints.serving("0", routes))
            return shown

        yield begin


@pytest.fixture
def opened(chromium):
    """Return a function that opens an address; fail on any error in the browser's console."""
    with contextlib.ExitStack() as stack:
        console_errors = []

        def begin(address, size=status_pictures.DESKTOP, colours="light", *, wait=True, **more):
            settings = {"reduced_motion": "reduce", "timezone_id": "UTC", "locale": "en-GB"}
            context = chromium.new_context(
                viewport=dict(zip(("width", "height"), size, strict=True)),
                color_scheme=colours,
                **{**settings, **more},
            )
            stack.callback(context.close)
            context.set_default_timeout(1000 * SECONDS)
            page = context.new_page()
            page.clock.set_fixed_time(status_pictures.NOW)
            page.on("pageerror", lambda error: console_errors.append(str(error)))
            page.on(
                "console",
                lambda message: console_errors.append(message.text)
                if message.type in ("error", "warning")
                else None,
            )
            page.console_errors = console_errors
            page.goto(address)
            if wait:
                page.wait_for_selector("#view:not([hidden])")
            return page

        yield begin
        assert console_errors == []
