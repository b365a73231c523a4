"""Creates the TLS certificate of a local server.

The certificate is self-signed, covers the loopback addresses and the names that the server answers to, and is valid for
a year. Clients trust it through ``ca_path``.
"""

import datetime as dt
import ipaddress
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, final

from shardline.errors import UsageError

_LIFE: Final = dt.timedelta(days=365)
_NAMES: Final[tuple[str, ...]] = ("localhost",)
_ADDRESSES: Final[tuple[str, ...]] = ("127.0.0.1", "::1")


@final
class Certificate(NamedTuple):
    """A self-signed certificate, and the file that clients need to verify it."""

    context: ssl.SSLContext
    ca_path: str
    """The file that clients verify the server with: ``Client(verify=ca_path)``, ``AWS_CA_BUNDLE``."""


def make_certificate(directory: Path, host: str, now: float, names: Iterable[str] = ()) -> Certificate:
    """Write a key and a certificate for ``host``, ``names`` and loopback to files in ``directory``.

    Raises:
        UsageError: the extra ``tls`` is not installed.
    """
    try:
        from cryptography import x509  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError:
        raise UsageError("TLS needs an extra: pip install 'shardline[tls]'") from None
    known = {*_NAMES, *_ADDRESSES, host, *names}
    addresses = {name for name in known if _is_address(name)}
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shardline local Kinesis")])
    # The certificate is valid from a day ago, so that even a client whose clock is slow accepts it.
    valid_from = dt.datetime.fromtimestamp(now, dt.UTC) - dt.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from)
        .not_valid_after(valid_from + _LIFE)
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    *(x509.DNSName(dns_name) for dns_name in sorted(known - addresses)),
                    *(x509.IPAddress(ipaddress.ip_address(address)) for address in sorted(addresses)),
                ]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = directory / "certificate.pem", directory / "key.pem"
    certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.touch(mode=0o600)
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_path, key_path)
    return Certificate(context, str(certificate_path))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
