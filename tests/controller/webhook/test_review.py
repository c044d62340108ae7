"""Parsing of AdmissionReviews and encoding of answers."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu import errors
from pyvgpu.controller.webhook import review


def asked(**request):
    made = {
        "uid": "u-1",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "team",
        "object": {"kind": "Pod"},
        **request,
    }
    return {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": made}


def read(document):
    return review.read(json.dumps(document).encode())


def written(answer, request=None):
    content = review.write(request or read(asked()), answer)
    document = json.loads(content)
    assert (document["apiVersion"], document["kind"]) == (review.API_VERSION, review.KIND)
    return document["response"]


def test_a_request_is_parsed():
    assert read(asked()) == review.AdmissionRequest(
        "u-1", "CREATE", "pods", "team", {"kind": "Pod"}
    )


@pytest.mark.parametrize(
    ("request_", "resource"),
    [
        ({"subResource": "status"}, "pods/status"),
        ({"resource": {"group": "batch", "resource": "jobs"}}, "jobs.batch"),
        ({"resource": None}, ""),
        ({"resource": None, "userInfo": {"username": [], "groups": 5}}, ""),
    ],
)
def test_resources_have_their_full_names(request_, resource):
    assert read(asked(**request_)).resource == resource


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "must be JSON"),
        (b"\xff\xfe", "must be JSON"),
        (b'{"a"', "must be JSON"),
        (b"[" * 100_000, "must be JSON"),
        (b"[]", "AdmissionReview of admission.k8s.io/v1"),
        (b"null", "AdmissionReview of admission.k8s.io/v1"),
        (json.dumps({**asked(), "apiVersion": "admission.k8s.io/v1beta1"}).encode(), "of admis"),
        (json.dumps({**asked(), "kind": "Pod"}).encode(), "AdmissionReview of"),
        (json.dumps({**asked(), "request": None}).encode(), "request.uid"),
        (json.dumps(asked(uid="")).encode(), "request.uid"),
        (json.dumps(asked(uid=7)).encode(), "request.uid"),
    ],
)
def test_an_invalid_review_is_refused_with_a_reason(content, why):
    with pytest.raises(errors.DataError, match=why):
        review.read(content)


@given(st.binary())
def test_arbitrary_bytes_raise_only_data_error(content):
    with pytest.raises(errors.DataError):
        review.read(content)


def test_a_patch_is_base64_encoded():
    operation = {"op": "add", "path": "/metadata/labels", "value": {"é": "\ud800"}}
    response = written(review.Review((operation,), ("mind",)))
    assert json.loads(base64.b64decode(response.pop("patch"))) == [operation]
    assert response == {
        "uid": "u-1",
        "allowed": True,
        "patchType": "JSONPatch",
        "warnings": ["mind"],
    }


def test_an_unchanged_object_has_no_patch():
    assert written(review.Review()) == {"uid": "u-1", "allowed": True}


def test_a_refusal_has_a_reason_and_no_patch():
    response = written(review.Review(({"op": "remove", "path": "/a"},), refusal="too much"))
    assert not response["allowed"]
    assert response["status"]["message"] == "too much"
    assert "patch" not in response


def test_warnings_are_truncated_to_the_api_servers_limit():
    warnings = written(review.Review(warnings=("x" * 1000,) * 100))["warnings"]
    assert {len(warning) for warning in warnings} == {250}
    assert sum(map(len, warnings)) < 4096


def test_a_failed_mutation_admits_the_object_unchanged():
    def broken(request):
        raise ZeroDivisionError(request.uid)

    response = written(review.ask(broken, read(asked())))
    assert response["allowed"]
    assert "patch" not in response
    assert "left it unchanged" in response["warnings"][0]
