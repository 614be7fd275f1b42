"""Systems in memory that tests of several folders open."""

import pytest

from multicast.testing import system
from tests.helpers.plans import chain
from tests.helpers.small import Small


@pytest.fixture
def double(request):
    """A double with the interests that the test's file names INTERESTS."""
    with system(request.module.INTERESTS) as made:
        yield made


@pytest.fixture
def world():
    """The chain's plan, without collectors."""
    with Small(chain()) as made:
        yield made
