"""The class ServerTls: the certificate, CAs and rules of the broker's ports, as they were loaded from files.

A connection keeps the ServerTls with which its handshake began. A reload makes a new one, whose memory replaces that of
the old one as soon as the last connection of the old one is closed. The keys of session tickets belong to the
SSLContext, so a client cannot resume a session from before a reload: its certificate is checked again.
"""

import ssl
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from duolog.bridge.config import ConfigError, TlsOptions
from duolog.bridge.net.tls.peer import BadPrincipalRule, PrincipalRules, TlsPeer

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
VERIFY: Final = {"none": ssl.CERT_NONE, "request": ssl.CERT_OPTIONAL, "require": ssl.CERT_REQUIRED}
FILE_BYTES_MAX: Final = 1 << 20


class NoPrincipal(Exception):
    """The certificate of a client is valid, and no rule of `tls.principal_rule` gives its user."""


class ServerTls:
    """What handshakes need. Reads files, so it is made in a thread or before the ports open. Raises ConfigError."""

    def __init__(self, options: TlsOptions) -> None:
        try:
            self._rules = PrincipalRules(options.principal_rule)
        except BadPrincipalRule as error:
            raise ConfigError(f"tls.principal_rule: {error}") from error
        self.context = _context(options)
        certificate = _first_certificate(options.certificate_file)
        self.subject = certificate.subject.rfc4514_string()
        self.expires = certificate.not_valid_after_utc.isoformat(timespec="seconds")
        self.expires_s = int(certificate.not_valid_after_utc.timestamp())

    def server_side(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Return the server's side of a new connection."""
        return self.context.wrap_bio(incoming, outgoing, server_side=True)

    def peer_of(self, tls: ssl.SSLObject) -> TlsPeer:
        """Return what a complete handshake says about the client. Raises NoPrincipal."""
        cipher = tls.cipher()
        version, name = tls.version() or "", cipher[0] if cipher else ""
        der = tls.getpeercert(binary_form=True)
        if der is None:
            return TlsPeer(version, name, None, "")
        subject = x509.load_der_x509_certificate(der).subject
        text = subject.rfc4514_string()
        common_names = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        principal = self._rules.principal_of(text, common_names)
        if principal is None:
            raise NoPrincipal(f"no rule of tls.principal_rule gives the user of the certificate {text[:200]!r}")
        return TlsPeer(version, name, principal, text)


def _context(options: TlsOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[options.min_version]
    # Compression would reveal secrets by sizes (CRIME); renegotiation costs the server more than the client.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        context.set_ciphers(options.ciphers)
    except ssl.SSLError as error:
        raise ConfigError(f"tls.ciphers: OpenSSL knows no cipher of {options.ciphers[:200]!r}") from error
    load_certificate(context, options)
    if options.client_auth != "none":
        load_cas(context, options.ca_file, "tls.ca_file")
    context.verify_mode = VERIFY[options.client_auth]
    return context


def load_certificate(context: ssl.SSLContext, options: TlsOptions) -> None:
    """Load `tls.certificate_file` and its key into a context. Raises ConfigError."""
    certificate, key = options.certificate_file, options.key_file or options.certificate_file
    _check_readable(certificate, "tls.certificate_file")
    _check_readable(key, "tls.key_file")
    try:
        # A password is always given, because OpenSSL would ask for a missing one on the terminal.
        context.load_cert_chain(certificate, key, password=options.key_password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"tls.certificate_file: {certificate} and the key in {key} cannot be used: {_reason(error)}"
        ) from error


def load_cas(context: ssl.SSLContext, file: str, setting: str) -> None:
    """Trust the CAs of a PEM file. Raises ConfigError."""
    _check_readable(file, setting)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise ConfigError(f"{setting}: {file} has no certificate in PEM: {_reason(error)}") from error


def _check_readable(file: str, setting: str) -> None:
    try:
        with Path(file).open("rb") as opened:
            size = len(opened.read(FILE_BYTES_MAX + 1))
    except OSError as error:
        raise ConfigError(f"{setting}: {file}: {error.strerror or error}") from error
    if size > FILE_BYTES_MAX:
        raise ConfigError(f"{setting}: {file} has more than {FILE_BYTES_MAX} bytes")


def _first_certificate(file: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(Path(file).read_bytes())[0]
    except (OSError, ValueError) as error:
        raise ConfigError(f"tls.certificate_file: {file}: {error}") from error


def _reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason in words; for a missing PEM block it is none, or only the name of its own library."""
    if not error.reason or error.reason == "PEM_LIB":
        return "a file is not in PEM format, or has no such part"
    return error.reason.replace("_", " ").lower()
