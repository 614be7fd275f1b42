"""Short segments, so that a test's log has some of them."""

import pytest

from multicast.conditional import judge
from tests.multicast.conditional import model


@pytest.fixture(scope="module")
def short_segments():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "SEGMENT", model.SEGMENT)
        yield
