"""The copy of the source into which bugs are planted."""

import pytest

from tests.running.planted import copied_source


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return copied_source(tmp_path_factory.mktemp("planted"))
