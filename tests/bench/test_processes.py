"""What collectors as processes tell of those that do not start."""

import pytest

from bench.harness.processes import CollectorProcesses
from multicast.errors import AmcastError, TimedOut
from tests.helpers.plans import poster


@pytest.mark.slow
def test_a_collector_that_ends_at_once_is_not_waited_for(tmp_path):
    place = "127.0.0.1:9", "t", "librdkafka", poster()
    with (
        CollectorProcesses(*place, tmp_path, options=("--no-such-option",)) as processes,
        pytest.raises(AmcastError, match="has ended") as refused,
    ):
        processes.wait_healthy()
    assert "No such option: --no-such-option" in str(refused.value)
    assert not isinstance(refused.value, TimedOut)
