"""The status page over HTTP: its files, security headers and ETags."""

import http.client
import json
import re

import pytest

from pyvgpu.http import endpoints
from pyvgpu.status import site


def ask(port, path, method="GET", **fields):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=fields)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


@pytest.fixture
def served():
    numbers = {"kind": "node", "n": 1}

    def document(asked):
        return site.answer(asked, {**numbers, "query": dict(asked.query)})

    with endpoints.serving("0", endpoints.Pages(lambda: b"", more=site.routes(document))) as port:
        yield port, numbers


@pytest.mark.parametrize("path", [*site.FILES, site.NUMBERS])
def test_every_response_has_a_strict_security_policy(served, path):
    answer, content = ask(served[0], path)
    assert answer.status == 200
    assert content
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_the_root_redirects_to_the_page(served):
    answer, _ = ask(served[0], "/")
    assert (answer.status, answer.headers["Location"]) == (302, "status")


@pytest.mark.parametrize("path", [*site.FILES, site.NUMBERS])
def test_a_matching_etag_gets_not_modified(served, path):
    first, _ = ask(served[0], path)
    again, content = ask(served[0], path, **{"If-None-Match": first.headers["ETag"]})
    assert (again.status, content) == (304, b"")
    other, content = ask(served[0], path, **{"If-None-Match": '"another"'})
    assert other.status == 200
    assert content


def test_changed_numbers_have_another_etag(served):
    port, numbers = served
    first, _ = ask(port, site.NUMBERS)
    numbers["n"] = 2
    again, content = ask(port, site.NUMBERS, **{"If-None-Match": first.headers["ETag"]})
    assert again.status == 200
    assert json.loads(content)["n"] == 2


def test_the_query_is_passed_to_the_document(served):
    _, content = ask(served[0], f"{site.NUMBERS}?node=a%2Fb&page=2&node=c")
    assert json.loads(content)["query"] == {"node": "c", "page": "2"}


def test_a_query_with_a_thousand_names_is_ignored(served):
    names = "&".join(f"a{number}=1" for number in range(1000))
    _, content = ask(served[0], f"{site.NUMBERS}?{names}")
    assert json.loads(content)["query"] == {}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(served, method):
    assert ask(served[0], site.NUMBERS, method)[0].status == 501


def test_the_page_loads_nothing_from_other_servers():
    for name, _ in site.FILES.values():
        text = site.content(name).decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.", text), name
        assert not re.search(r"\s(style|on[a-z]+)=", text), name
    assert b"innerHTML" not in site.content("page.js")


def test_every_file_of_the_page_is_served():
    named = re.findall(rb'(?:href|src)="(status[^"]*)"', site.content("page.html"))
    known = {file.removeprefix("/") for file in (*site.FILES, site.NUMBERS)}
    assert {name.decode() for name in named} == known - {"status"}
