"""The commands of a deployment: what they refuse, and what they pass on."""

import datetime
import ipaddress
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fake_sites import Told

from fedtailor.cli.federate import make_order
from fedtailor.cli.main import app
from fedtailor.core.errors import UserError
from fedtailor.deploy.flower.node_processes import Doors, _alone, check_certificate, state_folder
from fedtailor.deploy.progress_log import Listener, Relay
from fedtailor.methods import fedprox

NODE = "node --data digits --superlink 127.0.0.1:1"
FEDERATE = "federate --superlink 127.0.0.1:1"


def run(command: str) -> None:
    app(command.split(), standalone_mode=False)


@pytest.mark.parametrize(
    "command", [NODE, FEDERATE, "register {key} --superlink h:1 --root-certificates ca.pem"]
)
def test_without_flower_there_is_one_clear_line(command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(UserError, match=r"needs Flower: pip install 'fedtailor\[flower\]'"):
        run(command.format(key=tmp_path / "a.pub"))


def test_all_else_works_without_flower():
    alone = (
        "import sys; sys.modules['flwr'] = sys.modules['fcntl'] = None; import fedtailor.cli.main"
    )
    subprocess.run([sys.executable, "-c", alone], check=True)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (NODE, "give --root-certificates ca.pem, or --insecure"),
        (f"{NODE} --insecure --key k", "--key needs TLS"),
        (f"{NODE} --root-certificates nowhere.pem", "there is no file nowhere.pem"),
        (f"{NODE} --insecure --name a/b", "a name has letters"),
        (FEDERATE, "give --root-certificates ca.pem, or --insecure"),
        (f"{FEDERATE} --insecure --method dito", "no method 'dito'"),
    ],
)
def test_a_mistake_is_one_clear_line(command, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=why):
        run(command)


def test_a_wrong_deploy_table_is_told(tmp_path):
    (tmp_path / "e.toml").write_text("[deploy]\nsite = 3\n")
    with pytest.raises(UserError, match=r"e.toml: .*'site'.*sites"):
        run(f"{FEDERATE} --insecure {tmp_path / 'e.toml'}")


def test_an_order_holds_all_that_the_server_needs(tmp_path):
    text = Path(fedprox.__file__).read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "words.txt").write_text("the\ncat\n")
    deploy = {"sites": 3, "deadline": 9, "classes": 10, "vocabulary": tmp_path / "words.txt"}
    order = make_order({"method": str(tmp_path / "mine.py"), "seed": 4}, deploy, None, True)
    assert (
        order["sites"] == 3
        and order["deadline"] == 9
        and order["data"] == {"classes": 10}
        and order["resume"]
    )
    assert order["source"] == text and order["vocabulary"] == ["the", "cat"]
    assert order["out"].endswith("runs/mine-sites-s4")
    (tmp_path / "words.txt").write_text("the\ncat\nthe\n")
    with pytest.raises(UserError, match="a word is in it twice"):
        make_order({}, deploy, None, False)


def test_news_pass_a_log_that_comes_in_pieces(capsys):
    relay, told = Relay(), Told()
    relay.say("hello\nworld")
    print("INFO: something of Flower's")
    relay.tell("result", {"hash": "x"})
    log, listener = capsys.readouterr().out, Listener(told)
    for i in range(0, len(log), 7):
        listener.take(log[i : i + 7])
    assert told.lines == ["hello\nworld"] and listener.outcome == ("result", {"hash": "x"})
    assert listener.other == ["INFO: something of Flower's"]


def test_one_site_a_folder(tmp_path):
    folder = state_folder(tmp_path / "a", "a")
    assert folder.stat().st_mode & 0o077 == 0
    with (
        _alone(folder),
        pytest.raises(UserError, match="a site is running with the state in"),
        _alone(folder),
    ):
        pass


def certificate(folder, host: str, days: int) -> None:
    """A certificate that is its own authority, for some days from yesterday or up to yesterday."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    begin = now - datetime.timedelta(days=10)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(True, None), True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(secret)


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
    certificate(tmp_path, host, days)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            line, _ = listener.accept()
            try:
                context.wrap_socket(line, server_side=True).close()
            except (ssl.SSLError, OSError):
                line.close()

        thread = threading.Thread(target=serve)
        thread.start()
        doors = Doors(f"127.0.0.1:{listener.getsockname()[1]}", tmp_path / "ca.pem", None, tmp_path)
        if why is None:
            check_certificate(doors, pytest.fail)
        else:
            with pytest.raises(
                UserError, match=f"the certificate of the SuperLink at .* will not do: .*{why}"
            ):
                check_certificate(doors, pytest.fail)
        thread.join()


def test_a_superlink_that_is_not_there_yet_is_waited_for(tmp_path):
    certificate(tmp_path, "127.0.0.1", 5)
    said: list[str] = []
    check_certificate(Doors("127.0.0.1:1", tmp_path / "ca.pem", None, tmp_path), said.append)
    assert said == ["nobody answers at 127.0.0.1:1 yet; waiting for the SuperLink"]
    with pytest.raises(UserError, match="write it as HOST:PORT"):
        check_certificate(Doors("127.0.0.1", tmp_path / "ca.pem", None, tmp_path), said.append)
