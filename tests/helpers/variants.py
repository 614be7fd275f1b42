"""What long tests are run with: the usual case always, the others in the campaign only."""

import pytest

VERSIONS = [  # of the order records
    pytest.param(1, id="version 1", marks=pytest.mark.campaign),
    pytest.param(2, id="version 2"),
]
EACH_DRIVER = ["librdkafka", pytest.param("kafka-python", marks=pytest.mark.campaign)]
