"""TLS on the ports of the broker, by Python's `ssl` on memory BIOs: OpenSSL does not touch the sockets.

    accepted ──first byte──> 0x16: handshake ──> TlsStream ──> the connection of the port's protocol
                      │        (in a thread)       └ encrypts and decrypts between the socket and the connection
                      └────> any other: the same connection without TLS (`tls.mode=optional`), or closed (`required`)

    gate.py         TlsGate: handshakes of all ports, their number and their order
    handshake.py    Handshake: one connection until its handshake is complete
    stream.py       TlsStream: one connection from then on
    server_tls.py   ServerTls: certificate, CAs and rules, as loaded from files; a reload makes a new one
    peer.py         TlsPeer: what the handshake says about the client; rules that map its certificate to a user
    outgoing.py     the TLS of connections that the broker opens

With `tls.mode=off` none of these modules is imported, except `peer.py`.
"""
