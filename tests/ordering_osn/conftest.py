"""A real channel's config, an authority of a file's own, and the channel with its organisation."""

import pytest

from tests.ordering_osn.helpers.configs import genesis, with_organisation
from tests.ordering_osn.helpers.pki import root


@pytest.fixture(scope="module")
def config():
    return genesis()


@pytest.fixture(scope="module")
def authority():
    return root()


@pytest.fixture(scope="module")
def with_org2(config, authority):
    return with_organisation(config, authority)
