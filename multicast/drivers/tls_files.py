"""The files that the client settings name, checked before a connection is opened.

A client would try a wrong file again until its time is up, and then report that no broker answers.
For an encrypted key without its password, OpenSSL would ask at the terminal each time.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from multicast.errors import UsageError

_AUTHORITIES, _CERTIFICATE, _KEY = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
)


def check_files(client: Mapping[str, str]) -> None:
    """Raise `UsageError` unless each file can be read and holds what its setting says."""
    for name in (_AUTHORITIES, _CERTIFICATE, _KEY):
        if name in client and (Path(client[name]).is_dir() or not os.access(client[name], os.R_OK)):
            raise UsageError(
                f"The file {client[name]} of {name} cannot be read; check its path and rights."
            )
    if not client.get("security.protocol", "").upper().endswith("SSL"):
        return
    if _KEY in client and _CERTIFICATE not in client:
        raise UsageError(f"{_KEY} is set without {_CERTIFICATE}; give both, or none.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if _AUTHORITIES in client:
        try:
            context.load_verify_locations(client[_AUTHORITIES])
        except ssl.SSLError as error:
            raise UsageError(
                f"The file {client[_AUTHORITIES]} of {_AUTHORITIES} holds no certificates in PEM."
            ) from error
    if _CERTIFICATE in client:
        _check_pair(context, client[_CERTIFICATE], client.get(_KEY), client.get("ssl.key.password"))


def _check_pair(
    context: ssl.SSLContext, certificate: str, key: str | None, password: str | None
) -> None:
    """Raise `UsageError` unless the key fits the certificate and the password fits the key."""
    encrypted = False

    def tell_password() -> str:
        nonlocal encrypted
        encrypted = True
        return password or ""

    try:
        context.load_cert_chain(certificate, key, tell_password)
    except (ssl.SSLError, ValueError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            why = f"{key or certificate} holds the key of another certificate than {certificate}"
        elif encrypted and password is None:
            why = f"the key in {key or certificate} is encrypted; set ssl.key.password"
        elif encrypted:
            why = f"ssl.key.password does not open the key in {key or certificate}"
        elif key is None:
            why = f"the file {certificate} holds no certificate with its key in PEM; set {_KEY}"
        else:
            why = f"{certificate} and {key} must hold a certificate and its key in PEM"
        raise UsageError(f"Client setting {_CERTIFICATE}: {why}.") from error
