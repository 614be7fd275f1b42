"""What `amcast.toml` and the environment say of tickets, and what is said of a key's old name."""

import pytest

from multicast.errors import UsageError
from multicast.settings import settings


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


def test_the_key_that_tickets_had_before_is_refused_with_the_name_of_now(chosen):
    with pytest.raises(UsageError, match="'announce' is unknown; it is called 'tickets' now"):
        chosen('announce = "off"')
    with pytest.raises(UsageError, match=r"the key 'other' is unknown$"):
        chosen('other = "off"')
    with pytest.raises(UsageError, match="AMCAST_ANNOUNCE is set; it is called AMCAST_TICKETS now"):
        chosen(announce="off")
