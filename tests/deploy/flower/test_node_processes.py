"""The processes of a site: its folder, and the certificate of the SuperLink it connects to."""

import datetime
import ipaddress
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedtailor.core.errors import UserError
from fedtailor.deploy.flower.node_processes import (
    NodeOptions,
    check_certificate,
    find_error_line,
    lock_folder,
    make_state_folder,
)


def test_one_site_a_folder(tmp_path):
    folder = make_state_folder(tmp_path / "a", "a")
    assert folder.stat().st_mode & 0o077 == 0
    with (
        lock_folder(folder),
        pytest.raises(UserError, match="a site is running with the state in"),
        lock_folder(folder),
    ):
        pass


def test_the_line_that_tells_of_an_error_is_found():
    log = "INFO: starting\n  grpc error: no such key \nINFO: end\nerror: another\n"
    assert find_error_line(log) == "grpc error: no such key"
    assert find_error_line("INFO: starting\n") == ""


def test_commands_name_key_and_certificates_only_where_there_are_some(tmp_path):
    plain = NodeOptions("h:1", None, None, tmp_path).supernode_command(9)
    assert "--insecure" in plain and "--auth-supernode-private-key" not in plain
    secure = NodeOptions(
        "h:1", Path("ca.pem"), Path("k.key"), tmp_path
    ).supernode_command(9)
    assert "--insecure" not in secure
    assert secure[secure.index("--root-certificates") + 1] == "ca.pem"
    assert secure[secure.index("--auth-supernode-private-key") + 1] == "k.key"


def write_certificate(folder, host: str, days: int) -> None:
    """A certificate that is its own authority, from ten days ago to ``days`` from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    hosts = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=10))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(True, None), True)
        .add_extension(hosts, False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(private)


@pytest.mark.parametrize(
    ("host", "days", "why"),
    [
        ("127.0.0.1", 5, None),
        ("127.0.0.1", -1, "certificate has expired"),
        ("127.0.0.2", 5, "IP address mismatch"),
    ],
)
def test_a_certificate_that_has_expired_or_is_for_another_host_is_refused(
    host, days, why, tmp_path
):
    write_certificate(tmp_path, host, days)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            try:
                context.wrap_socket(connection, server_side=True).close()
            except (ssl.SSLError, OSError):
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        options = NodeOptions(address, tmp_path / "ca.pem", None, tmp_path)
        if why is None:
            check_certificate(options, pytest.fail)
        else:
            with pytest.raises(
                UserError,
                match=f"the certificate of the SuperLink at .* will not do: .*{why}",
            ):
                check_certificate(options, pytest.fail)
        thread.join()


def test_a_superlink_that_is_not_there_yet_is_waited_for(tmp_path):
    write_certificate(tmp_path, "127.0.0.1", 5)
    said: list[str] = []
    check_certificate(
        NodeOptions("127.0.0.1:1", tmp_path / "ca.pem", None, tmp_path), said.append
    )
    assert said == ["nobody answers at 127.0.0.1:1 yet; waiting for the SuperLink"]
    with pytest.raises(UserError, match="write it as HOST:PORT"):
        check_certificate(
            NodeOptions("127.0.0.1", tmp_path / "ca.pem", None, tmp_path), said.append
        )
