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
import tomllib
from collections.abc import Iterable
from pathlib import Path

from multicast.errors import UsageError
from multicast.local.broker import HOST, Installed
from multicast.local.jars import run_tool

_OPERATOR = "operator"
_KEYTOOL = ("-m", "java.base/sun.security.tools.keytool.Main")  # a part of every Java
_MODULE = "org.apache.kafka.common.security"


def make(directory: Path, java: Path) -> None:
    """Make the files of a new cluster."""
    folder = directory / "secure"
    folder.mkdir(mode=0o700, exist_ok=True)  # of a start that failed
    directory.chmod(0o700)
    password, store = folder / "password", folder / "key.p12"
    password.write_text(secrets.token_urlsafe(24))
    store.unlink(missing_ok=True)
    kept = (*("-alias", "broker", "-keystore", os.fspath(store)),
            *("-storepass:file", os.fspath(password)))  # fmt: skip
    name = ("-dname", "CN=amcast-local", "-ext", f"san=ip:{HOST}", "-validity", "365")
    for words in (("-genkeypair", "-keyalg", "EC", *name), ("-exportcert", "-rfc")):
        said = run_tool("keytool", [os.fspath(java), *_KEYTOOL, *words, *kept])
    _trusted(directory).write_text(said)
    _write_settings(directory, _OPERATOR, password.read_text(), "PLAIN")


def broker_settings(directory: Path) -> dict[str, str]:
    """Return what the brokers of a cluster need beside others' settings; none if it is plain."""
    password = client_of(directory).get("sasl.password")
    if password is None:
        return {}
    login = f'{_login(password)} user_operator="{password}";'
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
        "ssl.keystore.location": os.fspath(directory / "secure" / "key.p12"),
        "ssl.keystore.password": password,
        **_truststore(directory),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:operator",
    }


def _login(password: str) -> str:
    who = f'required username="operator" password="{password}"'
    return f"{_MODULE}.plain.PlainLoginModule {who}"


def _trusted(directory: Path) -> Path:
    return directory / "secure" / "brokers.pem"


def _truststore(directory: Path) -> dict[str, str]:
    trusted = os.fspath(_trusted(directory))
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": trusted}


def settings_of(directory: Path, user: str = _OPERATOR) -> Path:
    """Return where the settings of a user are."""
    return directory / "secure" / user / "amcast.toml"


def client_of(directory: Path) -> dict[str, str]:
    """Return the operator's client settings; none where a cluster is not secure."""
    file = settings_of(directory)
    return dict(tomllib.loads(file.read_text())["client"]) if file.exists() else {}


def add_user(directory: Path, bootstrap: str, name: str) -> Path:
    """Let a user sign in, with a new password; return the file of his settings."""
    if name == _OPERATOR or not re.fullmatch("[A-Za-z0-9_-]+", name):
        raise UsageError(f"{name!r} is no name of another user; give letters, digits, - and _")
    from multicast.drivers.kafka import Admin  # noqa: PLC0415 - it loads slowly

    password = secrets.token_urlsafe(24)
    with Admin(bootstrap, client_of(directory)) as admin:
        admin.set_password(name, password)
    return _write_settings(directory, name, password, "SCRAM-SHA-512")


def grant(directory: Path, installed: Installed, commands: Iterable[str]) -> None:
    """Run commands of `amcast generate acls` by Kafka's own tool, as the operator."""
    access = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **_truststore(directory)}
    access["sasl.jaas.config"] = f"{_login(client_of(directory)['sasl.password'])};"
    file = directory / "secure" / "operator.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in access.items()))
    for words in (shlex.split(line, comments=True) for line in commands):
        if words:
            if words[0] != "kafka-acls.sh":
                raise UsageError(f"{words[0]} is no command of 'amcast generate acls'")
            words += ["--command-config", os.fspath(file)]
            tool = installed.command("org.apache.kafka.tools.AclCommand", *words[1:])
            run_tool("Kafka's tool for rights", tool)


def _write_settings(directory: Path, user: str, password: str, mechanism: str) -> Path:
    """Write the client settings of a user; return the file."""
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": os.fspath(_trusted(directory)),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    file = settings_of(directory, user)
    file.parent.mkdir(exist_ok=True)
    file.touch(mode=0o600)
    file.write_text("[client]\n" + "".join(f'"{key}" = "{client[key]}"\n' for key in client))
    return file
