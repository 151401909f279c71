"""The TLS of connections that the broker opens: to check-back URLs and to name servers. Servers are always verified."""

import ssl

from duolog.bridge.config import TlsOptions
from duolog.bridge.net.tls.server_tls import VERSIONS, load_cas, load_certificate


def outgoing_context(options: TlsOptions) -> ssl.SSLContext:
    """Return what verifies the servers that the broker calls. Reads files. Raises ConfigError.

    With `tls.outgoing_ca_file`, only these CAs are trusted, and a server that asks for a client certificate gets the
    broker's own: such servers belong to the operator.
    """
    if not options.outgoing_ca_file:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_cas(context, options.outgoing_ca_file, "tls.outgoing_ca_file")
        if options.certificate_file:
            load_certificate(context, options)
    context.minimum_version = VERSIONS[options.min_version]
    context.check_hostname = options.outgoing_hostname_check
    return context
