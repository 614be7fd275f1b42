"""What `amcast.toml`, the environment and flags say, and what is refused in them."""

import logging
import os

import pytest

from multicast.drivers import client_settings
from multicast.drivers.client_settings import check_client
from multicast.errors import UsageError
from multicast.settings import find_file, settings


@pytest.fixture
def chosen(tmp_path):
    """Give a function that reads the settings from a file's line and from variables."""
    file = tmp_path / "amcast.toml"

    def read(line="", **variables):
        file.write_text(line)
        named = {f"AMCAST_{name.upper()}": value for name, value in variables.items()}
        return settings(bootstrap="127.0.0.1:1", environment=named, file=file)

    return read


def test_tickets_are_on_until_the_file_or_the_environment_switches_them_off(chosen):
    assert chosen().tickets
    assert not chosen('tickets = "off"').tickets
    assert not chosen(tickets="off").tickets
    assert chosen('tickets = "off"', tickets="on").tickets
    with pytest.raises(UsageError, match="tickets is 'yes'; choose on or off"):
        chosen(tickets="yes")


def test_an_unknown_key_is_refused(chosen):
    with pytest.raises(UsageError, match=r"the key 'other' is unknown$"):
        chosen('other = "off"')


def test_an_empty_flag_is_refused_and_an_empty_variable_is_unset(chosen):
    for name in ("bootstrap", "topic", "driver"):
        with pytest.raises(UsageError, match=f"--{name} is empty"):
            settings(**{"bootstrap": "127.0.0.1:1", name: ""}, environment={})
    assert chosen(topic="").topic == "A"


@pytest.mark.parametrize("topic", ["no such", "..", "a/b", "x" * 241])
def test_a_topic_that_kafka_refuses_is_refused_first(topic, chosen):
    with pytest.raises(UsageError, match="is not a valid name"):
        chosen(topic=topic)


def test_files_are_named_as_seen_from_the_folder_of_the_file(chosen, tmp_path, monkeypatch):
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    read = chosen('[client]\n"ssl.ca.location" = "ca.pem"\n"ssl.key.location" = "/etc/k"').client
    assert read == {"ssl.ca.location": str(tmp_path / "ca.pem"), "ssl.key.location": "/etc/k"}


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    file = tmp_path / "amcast.toml"
    file.write_text('topic = "B"', encoding="utf-8-sig")
    assert settings(bootstrap="127.0.0.1:1", environment={}, file=file).topic == "B"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_an_amcast_toml_that_is_no_regular_file_is_refused(make, tmp_path):
    below = tmp_path / "below"
    below.mkdir()
    make(tmp_path / "amcast.toml")
    with pytest.raises(UsageError, match="is not a regular file"):
        find_file(below)


def test_a_folder_that_this_user_may_not_look_into_is_passed_over(tmp_path):
    private = tmp_path / "private"
    (private / "below").mkdir(parents=True)
    private.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:  # root may look everywhere
            os.seteuid(65534)  # nobody's
        with pytest.raises(PermissionError):
            (private / "below").stat()
        assert find_file(private / "below") is None
    finally:
        os.seteuid(user)
        private.chmod(0o700)


NOBODY = 65534
PASSWORD = '[client]\n"sasl.password" = "open sesame"'


@pytest.mark.parametrize(
    ("mode", "own", "refused"),
    [
        (0o600, False, False),
        (0o644, False, False),
        (0o664, True, False),  # a group of one's own, as many systems give each user
        (0o664, False, True),
        (0o646, True, True),
    ],
)
def test_a_file_that_others_may_write_to_is_refused(
    mode, own, *, refused, chosen, tmp_path, monkeypatch
):
    chosen()
    file = tmp_path / "amcast.toml"
    file.chmod(mode)
    group = file.stat().st_gid
    monkeypatch.setattr(os, "getegid", lambda: group if own else group + 1)
    if not refused:
        chosen()
        return
    with pytest.raises(UsageError, match=r"may be written by others, .* chmod go-w"):
        chosen()


def give_away(path, monkeypatch):
    """Make a file somebody else's; only root can, so for others we become somebody else."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)


def test_a_file_or_a_link_of_somebody_else_is_refused(tmp_path, monkeypatch):
    file, below = tmp_path / "amcast.toml", tmp_path / "below"
    file.write_text('topic = "B"')
    below.mkdir()
    link = below / "amcast.toml"
    link.symlink_to(file)

    def read():
        return settings(bootstrap="127.0.0.1:1", environment={}, file=find_file(below)).topic

    assert read() == "B"
    for given in (link, file):
        with monkeypatch.context() as patch:
            give_away(given, patch)
            owner = given.lstat().st_uid
            with pytest.raises(UsageError, match=rf"{given} belongs to user {owner}, .* believed"):
                read()
            patch.setattr(os, "geteuid", lambda: 0)
            patch.setenv("SUDO_UID", str(owner))
            assert read() == "B"
        link.unlink(missing_ok=True)


def test_a_password_that_others_may_read_is_warned_of(chosen, tmp_path, caplog):
    chosen()
    for mode, text, said in ((0o644, "", 0), (0o600, PASSWORD, 0), (0o640, PASSWORD, 1)):
        (tmp_path / "amcast.toml").chmod(mode)
        chosen(text)
        assert len(caplog.messages) == said
    assert "holds a password and others may read it: chmod 600" in caplog.text
    assert "sesame" not in caplog.text


LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}


@pytest.mark.parametrize(
    ("client", "warning"),
    [
        ({}, None),
        ({"security.protocol": "SASL_SSL", **LOGIN}, None),
        ({"security.protocol": "SASL_PLAINTEXT", **LOGIN}, "whoever sees the network reads"),
        ({"security.protocol": "SSL", client_settings.CHECK_OF_NAMES: "https"}, None),
        ({"security.protocol": "ssl", client_settings.CHECK_OF_NAMES: "none"}, "for a broker"),
    ],
)
def test_a_connection_that_hides_nothing_is_warned_of_once(client, warning, caplog):
    client_settings._warn.cache_clear()
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        check_client(client)
    assert [warning in text for text in caplog.messages] == ([] if warning is None else [True])
