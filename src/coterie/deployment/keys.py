"""Keys for a trial: an authority, a certificate of the server that it has signed, and a key for each participant.

In earnest the server's certificate comes from an authority that participants trust anyway, and each participant makes its own key and
hands out only the public half.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coterie.errors import UserError

__all__ = ["Keys", "make_keys", "write_secret"]

DAYS = 90


class Keys:
    """Where the files of a folder of keys are.

    >>> Keys(Path("keys")).participant("north").name
    'north.key'
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.pem"
        self.certificate = folder / "server.pem"
        self.key = folder / "server.key"

    def participant(self, name: str) -> Path:
        """A participant's private key, which only it should have; the public half lies beside it, as `.pub`."""
        return self.folder / f"{name}.key"

    def public(self, name: str) -> Path:
        """A participant's public key."""
        return self.folder / f"{name}.pub"

    def need(self, *paths: Path) -> None:
        """Say what is missing."""
        for path in paths:
            if not path.is_file():
                raise UserError(f"--keys {self.folder}: {path.name} is missing; `coterie deploy keys` makes keys for a trial")


def make_keys(folder: Path, names: Sequence[str], hosts: Iterable[str] = ()) -> Keys:
    """Make what is not there yet: the authority and the server's certificate once, and a key for each participant.

    A UserError where a certificate that is there does not vouch for one of `hosts`.

    >>> import tempfile
    >>> keys = make_keys(Path(tempfile.mkdtemp()), ["north"])
    >>> sorted(path.name for path in keys.folder.iterdir())
    ['ca.key', 'ca.pem', 'north.key', 'north.pub', 'server.key', 'server.pem']
    """
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise UserError("coterie deploy needs Flower: pip install 'coterie[flower]'") from None
    keys = Keys(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not keys.ca.exists():
        _authority_and_server(keys, ["localhost", "127.0.0.1", *hosts])
    elif strange := [each for each in hosts if each not in _hosts(keys)]:
        raise UserError(
            f"--hosts {strange[0]}: {keys.certificate} is there and not for it; expected {', '.join(_hosts(keys))}, or another folder"
        )
    for name in names:
        if not keys.participant(name).exists():
            _participant(keys, name)
    return keys


def _authority_and_server(keys: Keys, hosts: Sequence[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = _signed("coterie trial authority", ca_key.public_key(), "coterie trial authority", ca_key, authority=True)
    alternatives = x509.SubjectAlternativeName([_host(each) for each in dict.fromkeys(hosts)])
    certificate = _signed(hosts[0], key.public_key(), "coterie trial authority", ca_key, alternatives, issuer_key=ca_key.public_key())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    for path, private in ((keys.folder / "ca.key", ca_key), (keys.key, key)):
        write_secret(path, private.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    keys.certificate.write_bytes(certificate.public_bytes(pem))
    keys.ca.write_bytes(ca.public_bytes(pem))


def _signed(
    name: str, key: Any, issuer: str, signer: Any, alternatives: Any = None, *, authority: bool = False, issuer_key: Any = None
) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    build = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key or key), critical=False)
    )
    if alternatives is not None:
        build = build.add_extension(alternatives, critical=False)
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    usage |= {"encipher_only": False, "decipher_only": False}
    build = build.add_extension(x509.KeyUsage(digital_signature=True, key_cert_sign=authority, crl_sign=authority, **usage), critical=True)
    return build.sign(signer, hashes.SHA256())


def _hosts(keys: Keys) -> list[str]:
    """Names and addresses that the server's certificate is for."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(keys.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in names]


def _host(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _participant(keys: Keys, name: str) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    write_secret(keys.participant(name), private)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    keys.public(name).write_bytes(public + b"\n")


def write_secret(path: Path, data: bytes) -> None:
    """Write what only its owner may read, from the first moment, in the place of what is there.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "secret"
    >>> write_secret(path, b"x")
    >>> oct(path.stat().st_mode)[-3:]
    '600'
    """
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
