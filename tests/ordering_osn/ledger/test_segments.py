"""Segments: what a scan finds while another process writes."""

import os
import types

from ordering_osn.ledger import segments


def test_a_segment_whose_header_is_written_while_it_is_scanned_has_no_rest(tmp_path, monkeypatch):
    """A reader of another process measures the new file before its header is in it."""
    segment, descriptor = segments.create(tmp_path, 7)
    os.close(descriptor)
    measured = types.SimpleNamespace(st_size=0)
    monkeypatch.setattr(segments.os, "fstat", lambda _: measured)
    scanned = segments.scan(segment.path)
    assert (scanned.segment.first, scanned.segment.next, scanned.rest) == (7, 7, 0)
