"""The keys and the region that AWS profile files hold: `~/.aws/credentials` and `~/.aws/config`.

`obstore` reads the environment, web identities, container and instance roles by itself, and renews what expires; it
does not read profile files. Google's and Azure's usual files are read by `obstore`.

The keys of a profile are read once, when the store is opened.
"""

import configparser
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from duolog.store.objects.errors import StoreRefused


class Profile(NamedTuple):
    """What a profile says; empty texts for what it does not say. Never log it."""

    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    region: str = ""


def read_profile(environment: Mapping[str, str]) -> Profile:
    """Return the profile that `AWS_PROFILE` names, or the default one if there is any.

    Keys are left out if the environment has `AWS_ACCESS_KEY_ID`. Raises StoreRefused if `AWS_PROFILE` names a profile
    that neither file has, or one without keys, such as a profile that needs a login.
    """
    home = Path(environment.get("HOME", "/"))
    name = environment.get("AWS_PROFILE", "")
    credentials_path = Path(environment.get("AWS_SHARED_CREDENTIALS_FILE", home / ".aws/credentials"))
    config_path = Path(environment.get("AWS_CONFIG_FILE", home / ".aws/config"))
    wanted = name or "default"
    keys = _section(credentials_path, wanted)
    config = _section(config_path, wanted if wanted == "default" else f"profile {wanted}")
    found = config | keys
    region = found.get("region", "")
    if environment.get("AWS_ACCESS_KEY_ID"):
        return Profile(region=region)
    profile = Profile(
        found.get("aws_access_key_id", ""),
        found.get("aws_secret_access_key", ""),
        found.get("aws_session_token", ""),
        region,
    )
    if name and not (profile.access_key_id and profile.secret_access_key):
        raise StoreRefused(
            f"the profile {name!r} of AWS_PROFILE has no aws_access_key_id with aws_secret_access_key in "
            f"{credentials_path} or {config_path}: add them, or put the credentials into the environment"
        )
    return profile


def _section(path: Path, name: str) -> dict[str, str]:
    """Return a section of a profile file; empty if there is no such file or section."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    try:
        parser.read_string(text)
    except configparser.Error as error:
        # The error's own text quotes lines of the file, which may be keys.
        raise StoreRefused(f"the profile file {path} cannot be read: {type(error).__name__}") from None
    return dict(parser[name]) if parser.has_section(name) else {}
