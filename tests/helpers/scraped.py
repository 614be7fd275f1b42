"""What a page of metrics says, for tests."""

import re

_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text):
    """Give the values of a page by (name, the labels' values except the topic)."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = _SAMPLE.fullmatch(line).groups()
            pairs = _LABEL.findall(labels or "")
            key = tuple(text for label, text in sorted(pairs) if label != "topic")
            assert (name, key) not in found, line
            found[name, key] = float(value)
    return found
