"""Keys and certificates for a trial of a deployment: an authority, the server's certificate, a key for every node.

For a trial only, because whoever makes them sees all private keys: in earnest every site makes its own key and hands
out the public half.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedtailor.core.errors import UserError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise UserError("making keys needs an extra: pip install 'fedtailor[flower]'") from None

ALWAYS = ("localhost", "127.0.0.1")  # a trial on one machine works without saying so
LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
HOST = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*\.?", re.IGNORECASE)
LONGEST = 3650  # days
PEM = serialization.Encoding.PEM


def make_trial(folder: Path, nodes: int, hosts: Sequence[str], days: int = 90) -> list[Path]:
    """Write ca.pem, ca.key, server.pem, server.key, node-0.key, node-0.pub, ...; gives them in this order.

    The server's certificate holds for ``hosts`` (names and addresses) and for this machine. Private keys are readable
    by their owner alone. Nothing is overwritten.
    """
    if nodes < 1:
        raise UserError(f"nodes={nodes} will not do: a trial has at least one")
    if not 1 <= days <= LONGEST:
        raise UserError(f"days={days} will not do: certificates hold for 1 to {LONGEST} days")
    wanted = list(dict.fromkeys(_alternative(host) for host in (*ALWAYS, *hosts)))
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    files = {
        "ca.pem": _certificate(authority, authority, days, None).public_bytes(PEM),
        "ca.key": _private(authority, serialization.PrivateFormat.PKCS8),
        "server.pem": _certificate(server, authority, days, wanted).public_bytes(PEM),
        "server.key": _private(server, serialization.PrivateFormat.PKCS8),
    }
    for i in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        files[f"node-{i}.key"] = _private(key, serialization.PrivateFormat.OpenSSH)
        files[f"node-{i}.pub"] = public + f" node-{i}\n".encode()
    return _write(folder, files)


def _alternative(host: str) -> x509.GeneralName:
    """A host as a certificate names it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST.fullmatch(host) or re.fullmatch(r"[\d.]+", host):
        raise UserError(
            f"host '{host}' is neither a name nor an address (write it without port or scheme)"
        )
    return x509.DNSName(host.rstrip(".").lower())


def _certificate(
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: list[x509.GeneralName] | None,
) -> x509.Certificate:
    """A certificate for a server at these hosts, or for the authority itself."""
    authority, now = hosts is None, datetime.now(UTC)
    subject = "FedTailor trial authority" if authority else "FedTailor trial server"
    usage = x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("FedTailor trial authority"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True
        )
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if hosts is not None:
        served = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(served, critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(PEM, form, serialization.NoEncryption())


def _write(folder: Path, files: dict[str, bytes]) -> list[Path]:
    """Write all files or, where one is there already, none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            if os.path.lexists(folder / name):
                raise UserError(
                    f"{folder / name} is there already and is not overwritten; choose another folder"
                )
        for name, data in files.items():
            mode = 0o600 if name.endswith(".key") else 0o644
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as f:
                f.write(data)
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be written: {error.strerror}") from None
    return [folder / name for name in files]
