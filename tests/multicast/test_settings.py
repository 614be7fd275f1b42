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
    ("mode", "group", "refused"),
    [
        (0o600, NOBODY, False),
        (0o644, NOBODY, False),
        (0o664, None, False),  # a group of one's own, as many systems give each user
        (0o664, NOBODY, True),
        (0o646, None, True),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_that_others_may_write_to_is_refused(mode, group, refused, chosen, tmp_path):
    chosen()
    file = tmp_path / "amcast.toml"
    file.chmod(mode)
    os.chown(file, -1, os.getegid() if group is None else group)
    if not refused:
        chosen()
        return
    with pytest.raises(UsageError, match=r"may be written by others, .* chmod go-w"):
        chosen()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_or_a_link_of_somebody_else_is_refused(tmp_path, monkeypatch):
    file, below = tmp_path / "amcast.toml", tmp_path / "below"
    file.write_text('topic = "B"')
    below.mkdir()
    link = below / "amcast.toml"
    link.symlink_to(file)

    def read():
        return settings(bootstrap="127.0.0.1:1", environment={}, file=find_file(below)).topic

    assert read() == "B"
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(UsageError, match=rf"{link} belongs to user {NOBODY}, .* not believed"):
        read()
    link.unlink()
    os.chown(file, NOBODY, NOBODY)
    with pytest.raises(UsageError, match=rf"{file} belongs to user {NOBODY}"):
        read()
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert read() == "B"


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
    ("client", "said"),
    [
        ({}, None),
        ({"security.protocol": "SASL_SSL", **LOGIN}, None),
        ({"security.protocol": "SASL_PLAINTEXT", **LOGIN}, "whoever sees the network reads"),
        ({"security.protocol": "SSL", client_settings.CHECK_OF_NAMES: "https"}, None),
        ({"security.protocol": "ssl", client_settings.CHECK_OF_NAMES: "none"}, "for a broker"),
    ],
)
def test_a_connection_that_hides_nothing_is_warned_of_once(client, said, caplog):
    client_settings._warn.cache_clear()
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        check_client(client)
    assert [said in text for text in caplog.messages] == ([] if said is None else [True])
