"""The cluster's status page in a real browser: sign-in, search, and paging."""

import json

import pytest
import scheduling_api
import status_cluster
import status_pictures
from status_cluster import STRANGER, VIEWER, StatusApi

from pyvgpu.allocator import annotations
from pyvgpu.controller.scheduler import node_info
from pyvgpu.controller.status import node_rows
from pyvgpu.http import endpoints

pytestmark = pytest.mark.browser


@pytest.fixture
def address():
    api = StatusApi()
    status_cluster.fill(api)
    with status_cluster.running(api) as shown:
        routes = endpoints.Pages(lambda: b"", more=shown.routes())
        with endpoints.serving("0", routes) as port:
            yield f"http://127.0.0.1:{port}/status"


def refused(page, *codes):
    """Remove the browser's console_errors about answers with these status codes."""
    page.console_errors[:] = [
        console_error
        for console_error in page.console_errors
        if not any(str(c) in console_error for c in codes)
    ]


def sign_in(page, token):
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Show", exact=True).click()


def test_page_is_shown_only_with_a_valid_token(address, opened):
    page = opened(address, wait=False)
    form = page.locator("#login")
    form.wait_for()
    assert "gpu-node" not in page.content()
    assert page.evaluate("document.activeElement.id") == "token"
    assert page.get_by_label("Token").get_attribute("type") == "password"
    sign_in(page, "unknown")
    page.get_by_text("The cluster does not know this token").wait_for()
    sign_in(page, STRANGER)
    page.get_by_text("eve may not get /pyvgpu/status").wait_for()
    assert page.evaluate("sessionStorage.length") == 0
    sign_in(page, VIEWER)
    page.get_by_role("link", name="gpu-node-12").wait_for()
    assert form.is_hidden()
    refused(page, 401, 403)


def test_token_is_kept_only_in_its_tab(address, opened):
    page = opened(address, wait=False)
    sign_in(page, VIEWER)
    page.wait_for_selector(".nodes")
    assert page.evaluate("[sessionStorage.length, localStorage.length]") == [1, 0]
    assert page.context.cookies() == []
    assert VIEWER not in page.content()
    page.reload()
    page.wait_for_selector(".nodes")
    other = page.context.new_page()
    other.goto(address)
    other.locator("#login").wait_for()
    refused(page, 401)


def test_expired_token_is_asked_for_again(address, opened):
    page = opened(address, wait=False)
    sign_in(page, VIEWER)
    page.wait_for_selector(".nodes")
    page.evaluate("sessionStorage.setItem('pyvgpu-token', 'over'); void ask()")
    page.get_by_text("The cluster does not know this token").wait_for()
    assert page.locator("#view").is_hidden()
    refused(page, 401)


def test_a_node_is_opened_and_left(address, opened):
    page = opened(address, wait=False)
    sign_in(page, VIEWER)
    page.get_by_role("link", name="gpu-node-3").click()
    page.locator(".device").first.wait_for()
    assert page.locator("h1").inner_text() == "gpu-node-3"
    page.go_back()
    page.wait_for_selector(".nodes")
    assert page.locator("h1").inner_text() == "frankfurt"
    refused(page, 401)


@pytest.fixture(scope="module")
def many():
    found = []
    for number in range(5000):
        info = node_info.NodeInfo(f"node-{number}")
        unhealthy = "Xid 79" if number % 100 == 7 else ""
        had = scheduling_api.devices(info.name, unhealthy=unhealthy)
        info.update(annotations.Published(scheduling_api.UNIT, had), "")
        found.append(node_rows.row_of(info, ""))
    return found


def test_five_thousand_nodes_are_searched_and_paged(many, serve, opened):
    whole = json.loads(json.dumps(status_pictures.cluster()))

    def document(asked):
        found = node_rows.chosen(many, node_rows.read(asked.query))
        return {**whole, "nodes": found, "totals": {**whole["totals"], "nodes": 5000}}

    page = opened(serve(document).address)
    listed = page.locator(".nodes tbody tr")
    assert listed.count() == node_rows.ON_A_PAGE
    page.get_by_role("button", name="Next").click()
    page.get_by_text("page 2 of 100, 5,000 nodes").wait_for()
    page.get_by_role("link", name="node-50", exact=True).wait_for()
    page.get_by_label("Node", exact=True).press_sequentially("node-49")
    page.get_by_text("page 1 of 3, 111 nodes").wait_for()
    page.get_by_label("Show").select_option("trouble")
    page.get_by_text("1 node", exact=True).wait_for()
    assert listed.count() == 1
    assert "gpu0, gpu1: Xid 79" in listed.inner_text()
    assert page.get_by_label("Node", exact=True).input_value() == "node-49"
    page.reload()
    page.wait_for_selector(".nodes tbody tr")
    assert listed.count() == 1  # the URL holds the query
    assert page.get_by_label("Node", exact=True).input_value() == "node-49"
