"""The login of commands, from the environment.

DUOLOG_TOKEN                   a bearer token
DUOLOG_USER, DUOLOG_PASSWORD   a user, by basic authentication
DUOLOG_TOKEN_FILE,             the same in files, as service managers and containers hand out secrets; a line end
DUOLOG_PASSWORD_FILE           after the secret does not count
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import typer

USER: Final = "DUOLOG_USER"
PASSWORD: Final = "DUOLOG_PASSWORD"
TOKEN: Final = "DUOLOG_TOKEN"


def authorization(environment: Mapping[str, str]) -> str | None:
    """Return the value of the header `Authorization`; None: there is no login. Raises BadParameter."""
    token, password, name = _secret(environment, TOKEN), _secret(environment, PASSWORD), environment.get(USER)
    if token is None:
        if name is None or password is None:
            return None
        return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"
    if name is not None:
        raise typer.BadParameter(f"{TOKEN} and {USER} are two logins: unset one of them")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise typer.BadParameter(f"{TOKEN}: a token is one line of ASCII without blanks")
    return bearer(token)


def bearer(token: str) -> str:
    """Return the value of the header `Authorization` with a token."""
    return f"Bearer {token}"


def _secret(environment: Mapping[str, str], variable: str) -> str | None:
    """Return the secret in a variable, or in the file that another variable names; None: neither is set."""
    of_file = f"{variable}_FILE"
    file = environment.get(of_file)
    if file is None:
        return environment.get(variable)
    if variable in environment:
        raise typer.BadParameter(f"{variable} and {of_file} are both set: unset one of them")
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise typer.BadParameter(f"{of_file}={file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{of_file}={file} is not text in UTF-8") from error
