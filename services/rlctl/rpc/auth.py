"""The bearer token: where it comes from, how a server checks it, how a client sends it."""

from __future__ import annotations

import hmac
import os
from pathlib import Path

from rlctl.core.errors import AuthenticationError, ConfigError

#: Environment variable with the token, for when there is no file.
VARIABLE = "RLCTL_TOKEN"
HEADER = "authorization"
_SCHEME = "bearer "


def read_token(file: Path | None) -> str | None:
    """The token in `file`, else in RLCTL_TOKEN, else none. Raises ConfigError; never shows the token."""
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"token_file: cannot read {file}: {error}", setting="token_file") from error
        source = f"token_file: {file}"
    else:
        given = os.environ.get(VARIABLE)
        if given is None:
            return None
        token, source = given.strip(), VARIABLE
    if not token:
        raise ConfigError(f"{source} is empty; write a token into it, or leave it out")
    if not all("!" <= letter <= "~" for letter in token):
        raise ConfigError(f"{source}: a token is one line of visible ASCII characters without spaces")
    return token


def header(token: str) -> tuple[str, str]:
    """The metadata entry by which a client sends the token."""
    return HEADER, f"Bearer {token}"


def check(given: str | bytes | None, token: str) -> None:
    """Checks an `authorization` value in constant time. Raises AuthenticationError."""
    text = given.decode("latin-1") if isinstance(given, bytes) else given or ""
    if text[: len(_SCHEME)].lower() != _SCHEME:
        raise AuthenticationError(
            f"a bearer token is needed: set token_file or {VARIABLE} on the client", reason="TOKEN_MISSING"
        )
    if not hmac.compare_digest(text[len(_SCHEME) :].encode(), token.encode()):
        raise AuthenticationError("the bearer token is not the one of this service", reason="TOKEN_WRONG")
