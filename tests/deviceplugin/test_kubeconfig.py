"""A kubeconfig says where the API server is, in the forms that kubectl knows."""

import base64
import json
import sys

import pytest
import yaml

from pyvgpu import errors
from pyvgpu.deviceplugin import apiserver, kubeconfig

URL = "https://10.0.0.1:6443"


def b64(text):
    return base64.b64encode(text.encode()).decode()


def config(cluster=None, user=None, **more):
    return {
        "clusters": [
            {"name": "other", "cluster": {"server": "https://other"}},
            {"name": "c", "cluster": {"server": URL, **(cluster or {})}},
        ],
        "users": [{"name": "u", "user": {"token": "t"} if user is None else user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
        **more,
    }


@pytest.fixture
def read(tmp_path):
    def write_and_read(document, form=json.dumps):
        file = tmp_path / "kubeconfig"
        file.write_text(document if isinstance(document, str) else form(document))
        return kubeconfig.read(file)

    return write_and_read


@pytest.mark.parametrize("form", [json.dumps, yaml.safe_dump], ids=["JSON", "YAML"])
def test_the_current_context_counts_in_both_forms(read, form):
    assert read(config(), form) == kubeconfig.Access(URL, token="t")


def test_where_no_context_is_named_it_is_the_first(read):
    document = config() | {"current-context": ""}
    assert read(document).server == "https://other"


def test_certificates_are_in_it_or_in_files_beside_it(read, tmp_path):
    (tmp_path / "ca.pem").write_text("authority\n")
    (tmp_path / "key.pem").write_text("key\n")
    found = read(
        config(
            {"certificate-authority": "ca.pem"},
            {"client-certificate-data": b64("certificate"), "client-key": "key.pem"},
        )
    )
    assert (found.authority, found.certificate) == ("authority\n", b"certificate\nkey\n")


def test_a_token_may_be_in_a_file_that_is_read_anew(read, tmp_path):
    found = read(config(user={"tokenFile": "token"}))
    assert found.token_file == tmp_path / "token"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param("{", "is neither JSON nor YAML", id="nothing"),
        pytest.param("", "holds NoneType", id="empty"),
        pytest.param("[]", "holds list", id="a list"),
        pytest.param("{}", "has no 'clusters'", id="no clusters"),
        pytest.param(config() | {"current-context": "y"}, "a context 'y'", id="no such context"),
        pytest.param(config() | {"users": []}, "a user 'u'", id="no such user"),
        pytest.param(config(user={"exec": {"command": "x"}}), "exec is not followed", id="exec"),
        pytest.param(config(user={"username": "x"}), "username is not followed", id="password"),
        pytest.param(
            config({"insecure-skip-tls-verify": True}), "insecure-skip", id="without checks"
        ),
        pytest.param(
            config({"certificate-authority-data": "!"}), "no base64", id="damaged authority"
        ),
        pytest.param(
            config(user={"client-certificate-data": b64("x")}), "go together", id="half a pair"
        ),
        pytest.param(
            config(user={"client-certificate": "no", "client-key": "no"}),
            "cannot be read: No such file",
            id="no such file",
        ),
    ],
)
def test_what_is_none_is_said_with_an_example(read, document, words):
    with pytest.raises(errors.DataError) as caught:
        read(document)
    assert words in str(caught.value)
    assert "kubeconfig: " in str(caught.value)


def test_without_pyyaml_json_is_read_and_yaml_is_not(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert read(config()).server == URL
    with pytest.raises(errors.DataError, match="PyYAML is not installed: pip install"):
        read(config(), yaml.safe_dump)


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"server": "10.0.0.1"}, "must be a URL, such as https://10.0.0.1:6443"),
        ({"certificate-authority-data": b64("nonsense")}, "its certificates are none"),
    ],
)
def test_what_cannot_be_connected_with_is_said(tmp_path, cluster, words):
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config(cluster)))
    with pytest.raises(errors.DataError, match=words):
        apiserver.connect(file)


def test_a_token_file_that_is_gone_is_an_answer_that_did_not_come(tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config({"server": "http://127.0.0.1:9"}, {"tokenFile": "gone"})))
    connection = apiserver.connect(file)
    with pytest.raises(apiserver.ServerError, match="the token cannot be read"):
        connection.call("GET", "/version")
