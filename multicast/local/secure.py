"""A local cluster for trying rights: TLS, users by password, and Kafka's authorizer.

    DIR/secure/                  key, certificate and password of the brokers
    DIR/secure/NAME/amcast.toml  the settings of a user; the user "operator" may do everything

DIR is for its owner only; no command line has a password.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from multicast.errors import AmcastError, UsageError
from multicast.local.broker import HOST, Installed
from multicast.local.process import run_bounded

_OPERATOR = "operator"
_KEYTOOL = ("-m", "java.base/sun.security.tools.keytool.Main")  # a part of every Java
_TOOL_S = 120.0  # a tool takes 2 s; it only stops a hang
_MODULE = "org.apache.kafka.common.security"


def make(directory: Path, java: Path) -> dict[str, str]:
    """Make the files of a new cluster; return Kafka's settings."""
    folder = directory / "secure"
    folder.mkdir(mode=0o700, exist_ok=True)  # of a start that failed
    directory.chmod(0o700)
    password, trusted, store = secrets.token_urlsafe(24), folder / "brokers.pem", folder / "key.p12"
    (folder / "password").write_text(password)
    store.unlink(missing_ok=True)
    kept = (*("-alias", "broker", "-keystore", os.fspath(store)),
            *("-storepass:file", os.fspath(folder / "password")))  # fmt: skip
    name = ("-dname", "CN=amcast-local", "-ext", f"san=ip:{HOST}", "-validity", "365")
    _run([os.fspath(java), *_KEYTOOL, "-genkeypair", "-keyalg", "EC", *name, *kept])
    trusted.write_text(_run([os.fspath(java), *_KEYTOOL, "-exportcert", "-rfc", *kept]))
    _write_settings(settings_of(directory), trusted, _OPERATOR, password, "PLAIN")
    who = f'required username="operator" password="{password}"'
    plain = f"{_MODULE}.plain.PlainLoginModule {who}"
    truststore = {"ssl.truststore.type": "PEM", "ssl.truststore.location": os.fspath(trusted)}
    client = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **truststore}
    properties = client | {"sasl.jaas.config": f"{plain};"}
    lines = "".join(f"{key}={value}\n" for key, value in properties.items())
    (folder / "operator.properties").write_text(lines)
    login = f'{plain} user_operator="{password}";'
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": login,
        "listener.name.controller.plain.sasl.jaas.config": login,
        "listener.name.plaintext.scram-sha-512.sasl.jaas.config": (
            f"{_MODULE}.scram.ScramLoginModule required;"
        ),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": os.fspath(store),
        "ssl.keystore.password": password,
        **truststore,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:operator",
    }


def settings_of(directory: Path, user: str = _OPERATOR) -> Path:
    """Return where the settings of a user are."""
    return directory / "secure" / user / "amcast.toml"


def client_of(directory: Path) -> Mapping[str, str]:
    """Return the operator's client settings; none where a cluster is not secure."""
    file = settings_of(directory)
    read = tomllib.loads(file.read_text()) if file.exists() else {"client": {}}
    return dict(read["client"])


def add_user(directory: Path, bootstrap: str, name: str) -> Path:
    """Let a user sign in, with a new password; return the file of his settings."""
    if name == _OPERATOR or not re.fullmatch("[A-Za-z0-9_-]+", name):
        raise UsageError(f"{name!r} is no name of another user; give letters, digits, - and _")
    from multicast.drivers.kafka import Admin  # noqa: PLC0415 - it loads slowly

    password, file = secrets.token_urlsafe(24), settings_of(directory, name)
    with Admin(bootstrap, client_of(directory)) as admin:
        admin.set_password(name, password)
    trusted = directory / "secure" / "brokers.pem"
    _write_settings(file, trusted, name, password, "SCRAM-SHA-512")
    return file


def grant(directory: Path, installed: Installed, commands: Iterable[str]) -> None:
    """Run commands of `amcast generate acls` by Kafka's own tool, as the operator."""
    access = ("--command-config", os.fspath(directory / "secure" / "operator.properties"))
    for words in (shlex.split(line, comments=True) for line in commands):
        if words:
            if words[0] != "kafka-acls.sh":
                raise UsageError(f"{words[0]} is no command of 'amcast generate acls'")
            _run(installed.command("org.apache.kafka.tools.AclCommand", *words[1:], *access))


def _write_settings(file: Path, trusted: Path, user: str, password: str, mechanism: str) -> None:
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": os.fspath(trusted),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    file.parent.mkdir(exist_ok=True)
    file.touch(mode=0o600)
    file.write_text("[client]\n" + "".join(f'"{key}" = "{client[key]}"\n' for key in client))


def _run(command: list[str]) -> str:
    """Run a tool of Java to its end; return what it printed."""
    try:
        code, output = run_bounded(command, timeout_s=_TOOL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AmcastError(f"Java's tool did not run: {error}") from None
    if code:
        raise AmcastError(f"Java's tool failed: {output[-500:]}")
    return output
