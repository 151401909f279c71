"""Settings of Kafka's Java clients and tools that log in with SASL over TLS."""

from __future__ import annotations

from pathlib import Path

LOGIN_MODULES = "org.apache.kafka.common.security"
OAUTH = f"{LOGIN_MODULES}.oauthbearer"


def java_tls(ca_file: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ca_file,
    }


def java_login(mechanism: str, name: str, password: str) -> dict[str, str]:
    """Log in with PLAIN or a SCRAM mechanism."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    options = f'username="{name}" password="{password}"'
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{LOGIN_MODULES}.{module} required {options};",
    }


def java_token(file: Path) -> dict[str, str]:
    """Log in with OAUTHBEARER and the token in a file; the JVM must allow this file (`Agents.token_file`)."""
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }


def as_properties(settings: dict[str, str]) -> str:
    """Return the text of a properties file, for `--command-config`."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())
