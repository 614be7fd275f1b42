"""A deployment of the poster's plan on the broker that all tests share."""

import pytest

from tests.helpers.plans import poster
from tests.helpers.system import System


@pytest.fixture
def system(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as made:
        yield made
