"""Settings of security: users, access rules and logins."""

from typing import Annotated

from duolog.bridge.config.section import KIB, Section, setting


class SecurityOptions(Section, frozen=True):
    """Who may use the broker, and for what.

    The class has more than 15 fields because each is a setting of the section `security`.
    """

    enabled: Annotated[
        bool,
        setting(
            "clients must log in, and may do only what access rules allow", kafka="authorizer.class.name",
            rocketmq="authorizationEnabled",
        ),
    ] = False  # fmt: skip
    allow_if_no_rule: Annotated[
        bool,
        setting(
            "what no access rule names is allowed to everybody who has logged in",
            kafka="allow.everyone.if.no.acl.found",
        ),
    ] = False
    secret_key_file: Annotated[
        str,
        setting(
            "file with the key that encrypts RocketMQ's secret keys in the log; made at first use; empty: "
            "`security.key` in the data directory"
        ),
    ] = ""
    scram_iterations: Annotated[
        int, setting("iterations of the hash of new passwords", kafka="SCRAM iterations", ge=4096, le=16384)
    ] = 4096
    sasl_plain_without_tls: Annotated[
        bool, setting("allow the SASL mechanism PLAIN on connections without TLS, which show the password")
    ] = False
    failed_login_delay_ms: Annotated[
        int,
        setting(
            "how long the answer to a login that has failed waits; the connection sends nothing else meanwhile",
            kafka="connection.failed.authentication.delay.ms",
            ge=0,
            le=10_000,
        ),
    ] = 100
    session_ms: Annotated[
        int,
        setting(
            "time after which a Kafka client must log in again on its connection; 0: never",
            kafka="connections.max.reauth.ms",
            ge=0,
        ),
    ] = 0
    login_bytes_max: Annotated[
        int,
        setting(
            "largest request before the login; on RocketMQ's port, where each request is signed, the first one may be "
            "larger by `rocketmq.body_bytes_max`",
            kafka="sasl.server.max.receive.size",
            ge=1 * KIB,
        ),
    ] = 64 * KIB  # fmt: skip
    oauth_keys: Annotated[
        str,
        setting(
            "JWKS file or URL with the keys of bearer tokens (OAUTHBEARER, HTTP); empty: tokens are not accepted",
            kafka="sasl.oauthbearer.jwks.endpoint.url",
        ),
    ] = ""
    oauth_keys_without_tls: Annotated[
        bool,
        setting(
            "allow an `http://` URL of another machine in `security.oauth_keys`: whoever is between can exchange the "
            "keys, and so can be any user"
        ),
    ] = False
    oauth_issuer: Annotated[
        str, setting("`iss` that tokens must have; empty: any", kafka="sasl.oauthbearer.expected.issuer")
    ] = ""
    oauth_audience: Annotated[
        str, setting("`aud` that tokens must have; empty: any", kafka="sasl.oauthbearer.expected.audience")
    ] = ""
    oauth_user_claim: Annotated[
        str, setting("claim of a token that names the user", kafka="sasl.oauthbearer.sub.claim.name")
    ] = "sub"
    oauth_groups_claim: Annotated[str, setting("claim of a token that lists the groups of the user; empty: none")] = ""
    audit_file: Annotated[
        str,
        setting(
            "file to which logins, refusals and administrative changes are appended as JSON lines; SIGHUP opens it "
            "again; empty: they are log lines of the component `audit`"
        ),
    ] = ""
    audit_lines_max: Annotated[
        int, setting("audit lines of one kind in a second; a line says how many more were left out", ge=1)
    ] = 100
    audit_queue_bytes: Annotated[
        int, setting("audit lines that wait for the disk; further ones are left out, and counted", ge=64 * KIB)
    ] = 1024 * KIB
    quotas_max: Annotated[int, setting("users and client ids with quotas; further ones are refused", ge=1)] = 10_000
    quota_clients_max: Annotated[
        int,
        setting(
            "clients whose use of quotas is summed up over connections; beyond, each connection counts alone", ge=1
        ),
    ] = 10_000
    users_max: Annotated[int, setting("users; further ones are refused", ge=1)] = 10_000
    rules_max: Annotated[int, setting("access rules; further ones are refused", ge=1)] = 50_000
