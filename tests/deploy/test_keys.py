"""Keys for a trial: a real TLS handshake takes them, and only for the hosts they were made for."""

from __future__ import annotations

import base64
import ipaddress
import socket
import ssl
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from fedtailor.cli.keys import keys
from fedtailor.core.errors import UserError
from fedtailor.deploy.keys import make_trial_keys
from fedtailor.maths.homomorphic import open_context, parse_key

NAMES = [
    "ca.pem",
    "ca.key",
    "server.pem",
    "server.key",
    "node-0.key",
    "node-0.pub",
    "node-1.key",
    "node-1.pub",
]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "new"
    files = make_trial_keys(folder, 2, ["superlink.example.org", "10.1.2.3", "fd00::7"])
    assert [p.name for p in files] == NAMES and sorted(
        p.name for p in folder.iterdir()
    ) == sorted(NAMES)
    return folder


def shake(trial: Path, host: str, ca: Path | None = None) -> str:
    """Connect by TLS through a socket pair, as strictly as Python can; returns the greeting."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(trial / "server.pem", trial / "server.key")
    client = ssl.create_default_context(cafile=str(ca or trial / "ca.pem"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    theirs.settimeout(10)

    def answer() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as secure:
                secure.sendall(b"welcome")
        except (
            ssl.SSLError,
            OSError,
        ):  # the client does not trust us, and says so itself
            theirs.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=host) as secure:
            return secure.recv(100).decode()
    finally:
        ours.close()
        thread.join(10)


@pytest.mark.parametrize(
    "host", ["superlink.example.org", "10.1.2.3", "fd00::7", "localhost", "127.0.0.1"]
)
def test_the_right_hosts_are_trusted(trial, host):
    assert shake(trial, host) == "welcome"


@pytest.mark.parametrize("host", ["other.example.org", "example.org", "10.1.2.4"])
def test_another_host_is_not(trial, host):
    with pytest.raises(
        ssl.SSLCertVerificationError, match=r"Hostname mismatch|IP address mismatch"
    ):
        shake(trial, host)


def test_another_authority_is_not_trusted(trial, tmp_path):
    make_trial_keys(tmp_path, 1, [])
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake(trial, "localhost", tmp_path / "ca.pem")


def test_certificates_hold_as_long_as_asked_and_the_server_is_no_authority(tmp_path):
    make_trial_keys(tmp_path, 1, ["a.example.org"], days=7)
    ca, server = (
        x509.load_pem_x509_certificate((tmp_path / f"{n}.pem").read_bytes())
        for n in ("ca", "server")
    )
    server.verify_directly_issued_by(ca)
    for certificate in (ca, server):
        assert (
            certificate.not_valid_after_utc - certificate.not_valid_before_utc
        ).days == 7
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "a.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("127.0.0.1")
    ]


def test_private_keys_are_for_their_owner_alone(trial):
    for path in trial.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == (
            0 if path.suffix == ".key" else 0o044
        ), path


def test_node_keys_are_openssh_keys_on_p384(trial):
    seen = set()
    for i in range(2):
        private = serialization.load_ssh_private_key(
            (trial / f"node-{i}.key").read_bytes(), password=None
        )
        assert isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(
            private.curve, ec.SECP384R1
        )
        kind, blob, comment = (trial / f"node-{i}.pub").read_text().split()
        assert kind == "ecdsa-sha2-nistp384" and comment == f"node-{i}"
        fields, rest = [], base64.b64decode(blob)
        while rest:  # RFC 4253: each field behind its length
            (length,) = struct.unpack(">I", rest[:4])
            fields.append(rest[4 : 4 + length])
            rest = rest[4 + length :]
        point = private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        assert fields == [b"ecdsa-sha2-nistp384", b"nistp384", point]
        seen.add(point)
    assert len(seen) == 2


@pytest.mark.parametrize("name", ["ca.key", "node-1.pub"])
def test_nothing_is_overwritten(tmp_path, name):
    (tmp_path / name).write_text("precious")
    with pytest.raises(
        UserError, match=f"{name} is there already and is not overwritten"
    ):
        make_trial_keys(tmp_path, 2, [])
    assert [p.name for p in tmp_path.iterdir()] == [name] and (
        tmp_path / name
    ).read_text() == "precious"
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(tmp_path / "nowhere")  # nor is a link followed
    with pytest.raises(UserError, match="is there already"):
        make_trial_keys(tmp_path, 2, [])


@pytest.mark.parametrize(
    "host",
    [
        "https://a.org",
        "a.org:9092",
        "a b",
        "",
        "-a.org",
        "300.1.1.1",
        "10.1.2",
        "ä.org",
    ],
)
def test_what_is_no_host_is_refused(tmp_path, host):
    with pytest.raises(UserError, match="neither a name nor an address"):
        make_trial_keys(tmp_path, 1, [host])
    assert not list(tmp_path.iterdir())


def test_wrong_counts_and_places_are_refused(tmp_path):
    (tmp_path / "file").touch()
    for folder, nodes, days, why in [
        (tmp_path, 0, 90, "nodes=0"),
        (tmp_path, 1, 0, "days=0"),
        (tmp_path, 1, 10**7, "1 to 3650 days"),
        (tmp_path / "file", 1, 90, "cannot be written"),
    ]:
        with pytest.raises(UserError, match=why):
            make_trial_keys(folder, nodes, [], days)


def test_the_command_says_where_each_file_belongs(tmp_path):
    app = typer.Typer()
    app.command()(keys)
    said = CliRunner().invoke(
        app, [str(tmp_path), "--nodes", "3", "--host", "superlink.example.org"]
    )
    assert said.exit_code == 0, said.output
    lines = {Path(line.split()[0]).name: line for line in said.output.splitlines()}
    assert "every machine" in lines["ca.pem"] and "no machine" in lines["ca.key"]
    assert (
        "the server alone" in lines["server.key"]
        and "site 2 alone" in lines["node-2.key"]
    )
    assert "the server: by this it knows site 2" in lines["node-2.pub"]
    assert "90 days for localhost, 127.0.0.1, superlink.example.org" in said.output
    assert shake(tmp_path, "superlink.example.org") == "welcome"


def test_without_cryptography_there_is_one_clear_line():
    program = "import sys; sys.modules['cryptography'] = None\n"
    program += "import fedtailor.cli.keys as command\n"
    program += "from pathlib import Path\ncommand.keys(Path('unused'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "making keys needs an extra: pip install 'fedtailor[flower]'"
    )


# ---------------------------------------------------------------- encrypted sums
def test_keys_of_encrypted_sums_are_made_with_the_others(tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    make_trial_keys(tmp_path / "keys", 1, [], he="bfv")
    secret = tmp_path / "keys" / "he.key"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    key = parse_key(secret.read_text(), "he.key")
    public = parse_key((tmp_path / "keys" / "he.pub").read_text(), "he.pub")
    assert key.is_secret
    assert not public.is_secret
    assert public.id == key.id
    assert not open_context(public.context).has_secret_key()


def test_a_new_key_for_the_next_run_alone(tmp_path: Path) -> None:
    pytest.importorskip("tenseal")
    app = typer.Typer()
    app.command()(keys)
    arguments = [str(tmp_path / "next"), "--only", "he", "--he", "ckks"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0
    assert "never the server" in shown.output
    assert sorted(p.name for p in (tmp_path / "next").iterdir()) == ["he.key", "he.pub"]
    text = (tmp_path / "next" / "he.pub").read_text()
    assert parse_key(text, "he.pub").scheme == "ckks"
