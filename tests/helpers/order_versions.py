"""Tests for each version of the order records; those of version 1 belong to the campaign."""

import pytest

VERSIONS = [
    pytest.param(1, id="version 1", marks=pytest.mark.campaign),
    pytest.param(2, id="version 2"),
]
