"""Keys and certificates for a trial of a deployment.

An authority, the server's certificate and a key for every node. For a trial only, because the
person who makes them sees all private keys: in a real deployment every site makes its own key and
hands out the public half.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedtailor.core.errors import UserError
from fedtailor.maths.homomorphic import make_key as make_he_key

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise UserError(
        "making keys needs an extra: pip install 'fedtailor[flower]'"
    ) from None

# always in the certificate, for a trial on one machine
LOCAL_HOSTS = (
    "localhost",
    "127.0.0.1",
)
LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
HOST = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*\.?", re.IGNORECASE)
MAX_DAYS = 3650
CLOCK_MARGIN = timedelta(hours=1)  # machines' clocks differ
AUTHORITY = "FedTailor trial authority"
SERVER = "FedTailor trial server"
PEM = serialization.Encoding.PEM


HE_FILES = ("he.key", "he.pub")


def make_he_keys(folder: Path, scheme: str) -> list[Path]:
    """Write he.key, which all sites share and the server never sees, and he.pub."""
    return write_new_files(folder, dump_he_keys(scheme))


def dump_he_keys(scheme: str) -> dict[str, bytes]:
    """The files of a new key for encrypted sums, by name."""
    key = make_he_key(scheme)
    texts = (key.to_json(), key.public().to_json())
    return {
        name: text.encode() + b"\n" for name, text in zip(HE_FILES, texts, strict=True)
    }


def make_trial_keys(
    folder: Path,
    nodes: int,
    hosts: Sequence[str],
    days: int = 90,
    he: str | None = None,
) -> list[Path]:
    """Write ca.pem, ca.key, server.pem, server.key, node-0.key, node-0.pub, ...; returns the paths.

    With ``he``, the scheme of encrypted sums, also he.key and he.pub.

    The server's certificate holds for ``hosts`` (names and addresses) and for this machine. Private
    keys are readable by their owner alone. Nothing is overwritten.
    """
    if nodes < 1:
        raise UserError(f"nodes={nodes}: a trial has at least one")
    if not 1 <= days <= MAX_DAYS:
        raise UserError(f"days={days}: certificates hold for 1 to {MAX_DAYS} days")
    names = list(dict.fromkeys(name_host(host) for host in (*LOCAL_HOSTS, *hosts)))
    authority = make_key()
    server = make_key()
    authority_certificate = make_authority_certificate(authority, days)
    server_certificate = make_server_certificate(server, authority, days, names)
    files = {
        "ca.pem": authority_certificate.public_bytes(PEM),
        "ca.key": dump_private_key(authority, serialization.PrivateFormat.PKCS8),
        "server.pem": server_certificate.public_bytes(PEM),
        "server.key": dump_private_key(server, serialization.PrivateFormat.PKCS8),
    }
    for i in range(nodes):
        key = make_key()
        files[f"node-{i}.key"] = dump_private_key(
            key, serialization.PrivateFormat.OpenSSH
        )
        files[f"node-{i}.pub"] = dump_public_key(key, f"node-{i}")
    if he is not None:
        files |= dump_he_keys(he)
    return write_new_files(folder, files)


def name_host(host: str) -> x509.GeneralName:
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


# -------------------------------------------------------------------- certificates
def make_authority_certificate(
    key: ec.EllipticCurvePrivateKey, days: int
) -> x509.Certificate:
    """The authority's certificate, signed by itself."""
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    builder = begin_certificate(key, AUTHORITY, key, days)
    builder = builder.add_extension(constraints, critical=True)
    builder = builder.add_extension(make_key_usage(authority=True), critical=True)
    return builder.sign(key, hashes.SHA384())


def make_server_certificate(
    key: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: list[x509.GeneralName],
) -> x509.Certificate:
    """A certificate for a server at these hosts, signed by the authority."""
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = begin_certificate(key, SERVER, authority, days)
    builder = builder.add_extension(constraints, critical=True)
    builder = builder.add_extension(make_key_usage(authority=False), critical=True)
    builder = builder.add_extension(purpose, critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return builder.sign(authority, hashes.SHA384())


def begin_certificate(
    key: ec.EllipticCurvePrivateKey,
    subject: str,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.CertificateBuilder:
    """What both certificates have in common: names, keys and dates."""
    now = datetime.now(UTC)
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(make_name(subject))
        .issuer_name(make_name(AUTHORITY))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_MARGIN)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(own_id, critical=False)
        .add_extension(signer_id, critical=False)
    )


def make_key_usage(authority: bool) -> x509.KeyUsage:
    """What a certificate's key may be used for: an authority signs certificates, a server data."""
    return x509.KeyUsage(
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


def make_name(common: str) -> x509.Name:
    """A name as certificates have it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


# -------------------------------------------------------------------- keys and files
def make_key() -> ec.EllipticCurvePrivateKey:
    """A new private key on the curve that Flower wants."""
    return ec.generate_private_key(ec.SECP384R1())


def dump_private_key(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> bytes:
    """The bytes of a private key's file."""
    return key.private_bytes(PEM, form, serialization.NoEncryption())


def dump_public_key(key: ec.EllipticCurvePrivateKey, comment: str) -> bytes:
    """The line of a public key's file, as OpenSSH has it."""
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return public + f" {comment}\n".encode()


def write_new_files(folder: Path, files: dict[str, bytes]) -> list[Path]:
    """Write all files or, where one is there already, none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            refuse_existing(folder / name)
        for name, data in files.items():
            mode = 0o600 if name.endswith(".key") else 0o644
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder} cannot be written: {error.strerror}"
        ) from None
    return [folder / name for name in files]


def refuse_existing(path: Path) -> None:
    """Raise UserError where there is a file, or a link that leads nowhere."""
    if os.path.lexists(path):
        raise UserError(
            f"{path} is there already and is not overwritten; choose another folder"
        )
