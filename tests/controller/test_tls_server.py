"""The HTTPS server with hostile clients: slow, oversized, malformed, unauthenticated."""

import contextlib
import datetime
import http.client
import json
import socket
import ssl
import threading

import https_server
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from https_server import JSON

from pyvgpu.controller.certs import certificates, serving_certificate
from pyvgpu.http import http_server, replies, tls_server


def echo(content):
    return replies.Reply(content, "answered")


def made_of(routes, **more):
    return https_server.HttpsServer(
        lambda address, *rest: tls_server.TlsServer(
            address, routes, *rest, most_bytes=1 << 20, **more
        )
    )


@pytest.fixture
def server():
    with contextlib.closing(made_of({"/echo": echo})) as made:
        yield made


def post(client, body=b"{}"):
    client.request("POST", "/echo", body, JSON)
    answer = client.getresponse()
    return answer.status, answer.read()


def test_one_connection_serves_many_requests(server):
    with contextlib.closing(server.connect()) as client:
        for number in range(3):
            body = json.dumps({"n": number}).encode()
            assert post(client, body) == (200, body)
    assert server.count(3) == [("/echo", "answered")] * 3


def test_a_renewed_certificate_is_served_to_new_connections_alone(server):
    before = server.bundle.authorities
    with contextlib.closing(server.connect()) as client:
        assert post(client) == (200, b"{}")
        server.bundle = certificates.make(https_server.WANTED, serving_certificate.utc())
        with contextlib.closing(server.connect()) as later:
            assert post(later) == (200, b"{}")
        with pytest.raises(ssl.SSLCertVerificationError):
            server.connect(before)
        assert post(client) == (200, b"{}")


def test_expect_100_continue_with_a_raw_socket(server):
    with contextlib.closing(server.connect()) as client:
        head = b"POST /echo HTTP/1.1\r\nHost:h\r\nContent-Type: application/json\r\n"
        head += b"Content-Length: 2\r\n"
        client.sock.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert client.sock.recv(1000).startswith(b"HTTP/1.1 100 Continue")
        client.sock.sendall(b"{}")
        assert client.sock.recv(1000).startswith(b"HTTP/1.1 200 OK")


def drip(sock, stop):
    """Send a head that never ends, a little at a time."""
    with contextlib.suppress(OSError):
        sock.sendall(b"POST /echo HTTP/1.1\r\nHost:h\r\n")
        while not stop.wait(0.02):
            sock.sendall(b"X: y\r\n")


def body_drip(sock, stop):
    """Send a body that never ends."""
    with contextlib.suppress(OSError):
        sock.sendall(b"POST /echo HTTP/1.1\r\nHost:h\r\nContent-Type: application/json\r\n")
        sock.sendall(b"Content-Length: 99999\r\n\r\n")
        while not stop.wait(0.02):
            sock.sendall(b" ")


@pytest.mark.parametrize("way", [drip, body_drip])
def test_a_slow_request_is_aborted_though_bytes_keep_arriving(server, monkeypatch, way):
    stop = threading.Event()
    monkeypatch.setattr(tls_server, "REQUEST_SECONDS", 0.3)
    hasty = made_of({"/echo": echo})
    with contextlib.closing(hasty), contextlib.closing(hasty.connect()) as client:
        thread = threading.Thread(target=way, args=(client.sock, stop))
        thread.start()
        try:
            seen = b"?"
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while seen:  # perhaps a refusal, then the end
                    seen = client.sock.recv(4096)
        except TimeoutError:
            pytest.fail("the connection was kept")
        finally:
            stop.set()
            thread.join()
    with contextlib.closing(server.connect()) as client:
        assert post(client)[0] == 200


def test_many_slow_clients_do_not_delay_others(server):
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        threads = []
        for _ in range(30):
            slow = stack.enter_context(contextlib.closing(server.connect()))
            threads.append(threading.Thread(target=drip, args=(slow.sock, stop)))
            threads[-1].start()
        with contextlib.closing(server.connect()) as client:
            assert post(client)[0] == 200
        stop.set()
        for thread in threads:
            thread.join()


def test_connections_that_break_do_not_fill_the_log(server, caplog, monkeypatch):
    monkeypatch.setattr(http_server, "TELL_SECONDS", 1000)
    caplog.set_level("INFO")
    for _ in range(20):
        with socket.create_connection(server.address) as plain:
            plain.sendall(b"nonsense\r\n\r\n")
            while plain.recv(1000):  # until the server closes it
                pass
    assert caplog.text.count("lost a connection") == 1


def test_a_body_of_50_megabytes_is_refused_before_it_is_read(server):
    with contextlib.closing(server.connect()) as client:
        client.putrequest("POST", "/echo")
        for name, value in (JSON | {"Content-Length": str(50 << 20)}).items():
            client.putheader(name, value)
        client.endheaders(b" " * 4096)
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (
            413,
            b"the body must have no more than 1048576 bytes\n",
        )
    with contextlib.closing(server.connect()) as client:
        assert post(client)[0] == 200


@pytest.mark.parametrize(
    ("head", "code"),
    [
        pytest.param(b"POST /echo\r\n\r\n", 400, id="no version"),
        pytest.param(b"POST /echo HTTP/2.0\r\n\r\n", 400, id="another version"),
        pytest.param(b"\x16\x03\x01\r\n\r\n", 400, id="no HTTP"),
        pytest.param(b"POST /echo HTTP/1.1\r\nHost:h\r\nno field\r\n\r\n", 400, id="no colon"),
        pytest.param(
            b"POST /echo HTTP/1.1\r\nHost:h\r\nA: b\r\n c\r\n\r\n", 400, id="a folded line"
        ),
        pytest.param(
            b"POST /echo HTTP/1.1\r\nHost:h\r\nA : b\r\n\r\n", 400, id="a space in a name"
        ),
        pytest.param(
            b"POST /echo HTTP/1.1\r\nHost:h\r\n" + b"A: b\r\n" * 101 + b"\r\n",
            400,
            id="many fields",
        ),
        pytest.param(
            b"POST /echo HTTP/1.1\r\nHost:h\r\nA: " + b"b" * 70_000, 400, id="a long field"
        ),
        pytest.param(b"POST /echo HTTP/1.1\r\nHost:h\r\n\r\n", 415, id="of no kind"),
        pytest.param(b"PUT /echo HTTP/1.1\r\nHost:h\r\n\r\n", 501, id="another method"),
        pytest.param(b"GET /echo HTTP/1.1\r\nHost:h\r\n\r\n", 405, id="get"),
        pytest.param(b"POST /other HTTP/1.1\r\nHost:h\r\n\r\n", 404, id="another path"),
        pytest.param(
            b"POST /echo HTTP/1.1\r\nHost:h\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
            400,
            id="two lengths",
        ),
        pytest.param(
            b"POST /echo HTTP/1.1\r\nHost:h\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            411,
            id="no length",
        ),
        pytest.param(
            b"POST /echo HTTP/1.1\r\nHost:h\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n{}POST /echo HTTP/1.1\r\nHost:h\r\n",
            400,
            id="a length and an encoding",
        ),
        pytest.param(
            b"POST /echo HTTP/1.1\r\nHost:h\r\nContent-Type: application/json\r\n"
            b"transfer-encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
            400,
            id="a length and the identity encoding",
        ),
    ],
)
def test_an_invalid_request_is_refused_and_the_connection_closed(server, head, code):
    assert raw(server, head).partition(b"\r\n")[0].split()[1] == str(code).encode()
    assert not server.seen


def raw(server, said):
    """Send *said*; return the whole answer, until the server closes the connection."""
    heard = b""
    with contextlib.closing(server.connect()) as client, contextlib.suppress(ConnectionError):
        client.sock.sendall(said)
        while more := client.sock.recv(4096):
            heard += more
    return heard


@pytest.mark.parametrize(
    ("version", "field", "kept"),
    [
        pytest.param("1.1", "", True, id="as usual"),
        pytest.param("1.1", "CONNECTION: Close\r\n", False, id="no more requests"),
        pytest.param("1.0", "", False, id="an old client"),
        pytest.param("1.0", "connection: keep-alive\r\n", True, id="an old one with keep-alive"),
    ],
)
def test_a_connection_is_kept_alive_as_the_client_asks(server, version, field, kept):
    one = (
        f"POST /echo HTTP/{version}\r\nHost:h\r\ncontent-TYPE: application/json; charset=utf-8\r\n"
        f"{field}content-length:2\r\n\r\n{{}}"
    )
    last = "GET / HTTP/1.1\r\nHost:h\r\n\r\n"
    heard = raw(server, (one + (last if kept else "")).encode())
    assert heard.startswith(f"HTTP/{version} 200 OK\r\n".encode())
    assert (b"HTTP/1.1 404 " in heard) == kept


def test_expect_100_continue_with_an_http_client(server):
    with contextlib.closing(server.connect()) as client:
        client.putrequest("POST", "/echo")
        for name, value in (JSON | {"Content-Length": "2", "Expect": "100-continue"}).items():
            client.putheader(name, value)
        client.endheaders()
        assert client.sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"{}")
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (200, b"{}")


def self_signed(folder, name):
    """Return a file with a key and its self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = folder / f"{name.replace(':', '-')}-{len(list(folder.iterdir()))}.pem"
    file.write_bytes(key.private_bytes(pem, *plain) + made.public_bytes(pem))
    return file


SCHEDULER = "system:kube-scheduler"


@pytest.fixture
def guarded(tmp_path):
    """A server that requires the scheduler's certificate, the file of it, and another one."""
    trusted = self_signed(tmp_path, SCHEDULER)
    other = self_signed(tmp_path, "system:node:node-1")

    class Guarded(https_server.HttpsServer):
        def context(self):
            context = super().context()
            for file in (trusted, other):
                context.load_verify_locations(file)
            context.verify_mode = ssl.CERT_REQUIRED
            return context

    def listener(address, *rest):
        return tls_server.TlsServer(address, {"/echo": echo}, *rest, clients=[SCHEDULER])

    with contextlib.closing(Guarded(listener)) as server:
        yield server, trusted, other


def asked_with(server, file):
    trust = ssl.create_default_context(cadata=server.bundle.authorities)
    if file:
        trust.load_cert_chain(file)
    with contextlib.closing(server.connect(trust=trust)) as client:
        return post(client)


def test_a_client_with_the_right_certificate_is_answered(guarded):
    server, trusted, _ = guarded
    assert asked_with(server, trusted) == (200, b"{}")


@pytest.mark.parametrize("kind", ["no certificate", "another name", "another authority"])
def test_other_clients_are_rejected(guarded, tmp_path, kind):
    server, _, other = guarded
    file = {
        "no certificate": None,
        "another name": other,
        "another authority": self_signed(tmp_path, SCHEDULER),
    }[kind]
    with pytest.raises((ConnectionError, ssl.SSLError, http.client.HTTPException)):
        asked_with(server, file)
    assert not server.seen


def test_a_request_sent_with_the_end_of_the_handshake_is_rejected_too(guarded):
    server, _, other = guarded
    trust = ssl.create_default_context(cadata=server.bundle.authorities)
    trust.load_cert_chain(other)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    spoken = trust.wrap_bio(incoming, outgoing, server_hostname=https_server.HOST)
    with socket.create_connection(server.address, timeout=https_server.SECONDS) as plain:
        shaken = False
        while not shaken:
            with contextlib.suppress(ssl.SSLWantReadError):
                spoken.do_handshake()
                shaken = True
            if not shaken:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(1 << 16))
        spoken.write(
            b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n\r\n{}"
        )
        plain.sendall(outgoing.read())  # our certificate and the request
        with contextlib.suppress(ConnectionError):
            while plain.recv(1 << 16):
                pass
    assert not server.seen
