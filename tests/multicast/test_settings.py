"""What `amcast.toml`, the environment and flags say, and what is refused in them."""

import os

import pytest

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
