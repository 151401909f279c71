"""Certificates for tests of TLS: a CA of their own, servers and clients, in files.

authority = Authority(tmp_path)
server = authority.server()                 # for localhost and 127.0.0.1
alice = authority.client("alice")
Broker(data, authority.settings() | {"tls.mode": "required"})
authority.server()                          # replaces the server's files by a new certificate
"""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=2)


class Files(NamedTuple):
    """A certificate, its key, and both in one file."""

    certificate: Path
    key: Path
    both: Path
    serial: int


class Authority:
    """A certificate authority that writes into `folder`."""

    def __init__(self, folder: Path, name: str = "Test CA") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / "ca.pem"
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def settings(self) -> dict[str, object]:
        """Make a server's certificate, and return the settings of a broker that uses it."""
        files = self.server()
        return {
            "tls.mode": "required",
            "tls.certificate_file": files.certificate,
            "tls.key_file": files.key,
            "tls.ca_file": self.file,
        }

    def server(self, *hosts: str, rsa_bits: int = 0) -> Files:
        """Make the certificate of a server with these host names and addresses; default: this machine."""
        names: list[x509.GeneralName] = []
        for host in hosts or ("localhost", "127.0.0.1"):
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        key = rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, "broker")]
        return self._issue("server", subject, key, names, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, *common_names: str, organisation: str = "") -> Files:
        """Make the certificate of a client."""
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation)] if organisation else []
        subject += [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names]
        key = ec.generate_private_key(ec.SECP256R1())
        return self._issue("-".join(common_names) or "nobody", subject, key, [], ExtendedKeyUsageOID.CLIENT_AUTH)

    def client_context(self, files: Files | None = None) -> ssl.SSLContext:
        """Return what a client uses that trusts this authority, with its own certificate if it has one."""
        context = ssl.create_default_context(cafile=str(self.file))
        if files is not None:
            context.load_cert_chain(files.certificate, files.key)
        return context

    def _issue(
        self,
        name: str,
        subject: list[x509.NameAttribute[str]],
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
        hosts: list[x509.GeneralName],
        usage: x509.ObjectIdentifier,
    ) -> Files:
        builder = (
            _builder(x509.Name(subject), self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        key_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        files = Files(
            self.folder / f"{name}.pem",
            self.folder / f"{name}.key",
            self.folder / f"{name}-both.pem",
            certificate.serial_number,
        )
        files.certificate.write_bytes(pem)
        files.key.write_bytes(key_pem)
        files.both.write_bytes(pem + key_pem)
        return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
