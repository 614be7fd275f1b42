"""Options that several commands share."""

import pytest

from multicast.cli.options import seconds_of
from multicast.errors import UsageError


def test_a_duration_has_a_unit_and_is_a_week_at_most():
    texts = ("60", "60s", "500ms", "2m", "1h", "168h")
    assert [seconds_of(text) for text in texts] == [60, 60, 0.5, 120, 3600, 604_800]
    for text in ("169h", f"{'9' * 400}s", "99999999999999999999h"):
        with pytest.raises(UsageError, match="a duration is a week at most, 168h"):
            seconds_of(text)
    with pytest.raises(UsageError, match="is not a duration"):
        seconds_of("-1s")
