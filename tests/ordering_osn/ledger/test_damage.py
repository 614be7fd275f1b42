"""The ledger after crashes, on full disks, with damaged bytes: no wrong block is ever read."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import types
from contextlib import contextmanager

import pytest

from multicast.errors import UnknownVersion
from ordering_osn.ledger import segments
from ordering_osn.ledger.ledger import Ledger, LedgerDamaged, LedgerFailed, LedgerFull
from tests.ordering_osn.helpers.ledgers import (
    SMALL,
    block,
    contents,
    files,
    fill,
    newest,
    open_small,
    real_block,
    reopened,
)

# Crashes


@pytest.mark.slow
def test_a_newest_segment_cut_off_anywhere_ends_with_its_last_whole_block(tmp_path, caplog):
    fill(tmp_path / "whole", 6)
    last = newest(tmp_path / "whole")
    first, written = int(last.stem), last.read_bytes()
    record = segments.RECORD_BYTES + len(block(5))
    for length in range(len(written)):
        folder = tmp_path / f"{length}"
        shutil.copytree(tmp_path / "whole", folder)
        (folder / last.name).write_bytes(written[:length])
        whole = max(0, length - segments.HEADER_BYTES) // record
        with open_small(folder) as ledger:
            assert contents(ledger) == [block(number) for number in range(first + whole)]
            torn = length - segments.HEADER_BYTES - whole * record
            assert ledger.torn_bytes == (torn if torn >= 0 else length)
            ledger.append(first + whole, b"after")
        assert reopened(folder)[first + whole :] == [b"after"]
        shutil.rmtree(folder)
    assert "left by a crash" in caplog.text


@pytest.mark.parametrize("zeros", [1, 36, 5000])
def test_zeros_that_a_file_system_left_behind_are_cut_off(tmp_path, zeros):
    fill(tmp_path, 4)
    whole = newest(tmp_path).stat().st_size
    with newest(tmp_path).open("ab") as file:
        file.write(bytes(zeros))
    with open_small(tmp_path) as ledger:
        assert (ledger.torn_bytes, ledger.height) == (zeros, 4)
        assert newest(tmp_path).stat().st_size == whole
    assert reopened(tmp_path) == [block(number) for number in range(4)]


@pytest.mark.parametrize("left", [b"", b"amcast", bytes(36), bytes(400)])
def test_a_segment_without_its_header_is_removed(tmp_path, left):
    fill(tmp_path, 4)
    segments.segment_path(tmp_path, 4).write_bytes(left)
    fill(tmp_path, 9)
    assert reopened(tmp_path) == [block(number) for number in range(9)]


def test_a_ledger_whose_only_block_was_torn_begins_again(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        ledger.append(0, b"torn")
    os.truncate(newest(tmp_path), segments.HEADER_BYTES + 5)
    with Ledger.open(tmp_path) as ledger:
        assert (ledger.base, ledger.height, ledger.last()) == (0, 0, None)
        ledger.append(0, b"again")
    assert reopened(tmp_path) == [b"again"]


def test_what_looks_like_a_record_within_a_torn_block_is_none(tmp_path):
    with open_small(tmp_path / "other") as other:
        other.append(0, b"")
        other.append(1, b"planted")
    planted = newest(tmp_path / "other").read_bytes()[segments.HEADER_BYTES :]
    with open_small(tmp_path / "chain") as ledger:
        ledger.append(0, planted + block(0))
    path = newest(tmp_path / "chain")
    path.write_bytes(path.read_bytes()[:-1])
    assert reopened(tmp_path / "chain") == []


_WRITER = """
import sys
from pathlib import Path
from ordering_osn.ledger.ledger import Ledger
with Ledger.open(Path(sys.argv[1]), fsync=sys.argv[2], segment_bytes_max=1 << 16) as ledger:
    while True:
        number = ledger.height
        ledger.append(number, b"%d " % number * (number * 37 % 5000))
        print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["block", "never"])
def test_a_killed_writer_loses_nothing_that_was_appended(tmp_path, fsync):
    height = 0
    for kill_after in (1, 40, 7):
        command = [sys.executable, "-c", _WRITER, tmp_path, fsync]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            for _ in range(kill_after):
                assert int(writer.stdout.readline()) >= height
            writer.send_signal(signal.SIGKILL)
            told = [int(line) for line in writer.stdout if line.endswith("\n")]
        with Ledger.open(tmp_path) as ledger:
            assert ledger.height >= max([height + kill_after - 1, *told]) + 1
            height = ledger.height
            for number in range(height):
                assert ledger.read(number) == b"%d " % number * (number * 37 % 5000)


# Damage


def open_and_read(folder):
    """Return height and blocks of a ledger that may be damaged, and the errors of reading it."""
    damage, contents = [], {}
    try:
        ledger = Ledger.open(folder, read_only=True)
    except (LedgerDamaged, UnknownVersion) as error:
        return None, contents, [str(error)]
    for number in range(ledger.base, ledger.height):
        try:
            contents[number] = ledger.read(number)
        except LedgerDamaged as error:
            damage.append(str(error))
    return ledger.height, contents, damage


@pytest.mark.slow
def test_a_flipped_bit_anywhere_is_found_and_said(tmp_path):
    fill(tmp_path, 13, make=real_block)
    with open_small(tmp_path) as ledger:
        ledger.prune(7)
    whole = files(tmp_path)
    chance, last = random.Random(1), newest(tmp_path)
    assert {"base", last.name} < whole.keys()
    assert any(name.endswith(".index") for name in whole)
    # Never read: the header of a segment that has an index, and blocks below the base.
    live = {path.name: 0 for path in segments.listed(tmp_path)}
    with open_small(tmp_path) as ledger:
        for segment in ledger._segments:
            live[segment.path.name] = segment.next - max(segment.first, ledger.base)
    record = segments.RECORD_BYTES + len(real_block(12))
    for name, written in whole.items():
        for offset in range(len(written)):
            flipped = bytearray(written)
            flipped[offset] ^= 1 << chance.randrange(8)
            (tmp_path / name).write_bytes(flipped)
            height, contents, damage = open_and_read(tmp_path)
            assert all(raw == real_block(number) for number, raw in contents.items())
            if name.endswith(".index"):
                assert (height, len(contents), damage) == (13, 6, [])
            elif (
                name == last.name and offset >= len(written) - record
            ):  # cannot be told from a torn tail
                assert (height, len(contents), damage) == (12, 5, [])
            elif name not in ("base", last.name) and offset < len(written) - live[name] * record:
                assert (height, len(contents), damage) == (13, 6, [])
            else:
                assert len(damage) == 1
                assert name in damage[0]
        (tmp_path / name).write_bytes(written)


def test_damage_with_intact_blocks_behind_it_is_no_torn_tail(tmp_path):
    fill(tmp_path, 3, make=block)
    path = newest(tmp_path)
    written = bytearray(path.read_bytes())
    written[segments.HEADER_BYTES + 18] ^= 1  # in the length of block 0
    path.write_bytes(written)
    with pytest.raises(LedgerDamaged, match="block 0, but block 1 behind it is intact"):
        open_small(tmp_path)
    assert path.read_bytes() == written


def test_a_cut_off_full_segment_is_damage(tmp_path):
    fill(tmp_path, 9)
    first = segments.listed(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(LedgerDamaged, match="but there are later segments"):
        open_small(tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_segment_is_damage(tmp_path, which):
    fill(tmp_path, 20)
    missing = segments.listed(tmp_path)[which]
    missing.unlink()
    with pytest.raises(LedgerDamaged, match="missing"):
        open_small(tmp_path)


def test_blocks_that_are_missing_up_to_the_base_are_damage(tmp_path):
    fill(tmp_path / "short", 9, make=real_block)
    fill(tmp_path / "long", 20, make=real_block)
    with open_small(tmp_path / "long") as ledger:
        ledger.prune(13)
    shutil.copy(tmp_path / "long" / "base", tmp_path / "short" / "base")
    with pytest.raises(LedgerDamaged, match="blocks 9 to 13 are missing"):
        open_small(tmp_path / "short")


def test_a_segment_under_another_name_is_damage(tmp_path):
    fill(tmp_path, 9)
    newest(tmp_path).rename(segments.segment_path(tmp_path, 77))
    with pytest.raises(LedgerDamaged, match="it begins with block 8"):
        open_small(tmp_path)


def test_a_segment_that_vanishes_while_it_is_used_is_damage(tmp_path):
    fill(tmp_path, 9)
    with open_small(tmp_path) as ledger:
        segments.listed(tmp_path)[0].unlink()
        with pytest.raises(LedgerDamaged, match="missing"):
            ledger.read(0)
        assert ledger.read(8) == block(8)


@pytest.mark.parametrize("harm", ["remove", "damage", "exchange"])
def test_an_index_is_made_anew_from_its_segment(tmp_path, harm, caplog):
    fill(tmp_path, 20)
    before = files(tmp_path)
    first, second, *_ = sorted(tmp_path.glob("*.index"))
    if harm == "remove":
        first.unlink()
    elif harm == "damage":
        first.write_bytes(b"x" + first.read_bytes()[1:])
    else:
        shutil.copy(second, first)
    with open_small(tmp_path) as ledger:
        assert ledger.indexes_rebuilt == 1
        assert contents(ledger) == [block(number) for number in range(20)]
    assert files(tmp_path) == before
    assert "writing a new one" in caplog.text


def test_bytes_behind_the_base_are_damage(tmp_path):
    fill(tmp_path, 9, make=real_block)
    with open_small(tmp_path) as ledger:
        ledger.prune(7)
    with (tmp_path / "base").open("ab") as file:
        file.write(b"x")
    with pytest.raises(LedgerDamaged, match="config block"):
        open_small(tmp_path)


def test_a_newer_version_is_not_damage(tmp_path):
    fill(tmp_path, 1)
    path = newest(tmp_path)
    head = bytearray(path.read_bytes()[: segments.HEADER_BYTES - 4])
    head[11] = 2
    path.write_bytes(head + segments.crc32c(bytes(head)).to_bytes(4, "big"))
    with pytest.raises(UnknownVersion, match="version 2"):
        open_small(tmp_path)


# Full disks


@contextmanager
def file_bytes_max(limit):
    """Limit the size of files, which fails writes as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_ledger_as_it_was_and_it_goes_on_when_there_is_room(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        ledger.append(0, b"a")
        size = newest(tmp_path).stat().st_size
        with file_bytes_max(size + 1000):
            for _ in range(2):
                with pytest.raises(LedgerFull) as caught:
                    ledger.append(1, bytes(5000))
                assert caught.value.retriable
                assert caught.value.definite
            assert newest(tmp_path).stat().st_size == size
            ledger.append(1, b"small")
        ledger.append(2, bytes(5000))
        assert contents(ledger) == [b"a", b"small", bytes(5000)]
    assert reopened(tmp_path) == [b"a", b"small", bytes(5000)]


@pytest.mark.parametrize("limit", [0, 10])
def test_a_disk_too_full_for_a_new_segment_leaves_the_ledger_as_it_was(tmp_path, limit):
    with open_small(tmp_path) as ledger:
        while not segments.listed(tmp_path) or newest(tmp_path).stat().st_size < SMALL:
            ledger.append(ledger.height, block(ledger.height))
        height, before = ledger.height, files(tmp_path)
        with file_bytes_max(limit), pytest.raises(LedgerFull):
            ledger.append(height, b"next")
        assert {name for name in files(tmp_path) if "draft" not in name} == before.keys()
        ledger.append(height, b"next")
        assert ledger.last() == b"next"
    assert reopened(tmp_path)[height:] == [b"next"]


def test_a_disk_too_full_for_the_first_segment_can_be_tried_again(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        with file_bytes_max(10), pytest.raises(LedgerFull):
            ledger.append(0, b"a")
        ledger.append(0, b"a")
    assert reopened(tmp_path) == [b"a"]


def test_a_disk_too_full_for_the_base_prunes_nothing(tmp_path):
    fill(tmp_path, 20, make=real_block)
    with open_small(tmp_path) as ledger:
        with file_bytes_max(10), pytest.raises(LedgerFull):
            ledger.prune(12)
        assert contents(ledger) == [real_block(number) for number in range(20)]
        ledger.prune(12)
        assert ledger.base == 12


def test_a_failed_sync_is_not_tried_again_but_by_opening_anew(tmp_path, monkeypatch):
    ledger = Ledger.open(tmp_path)
    ledger.append(0, b"a")

    def failing(_descriptor):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(segments, "_sync_data", failing)
        with pytest.raises(LedgerFailed, match="Input/output error") as caught:
            ledger.append(1, b"b")
        assert not caught.value.definite
    for attempt in (lambda: ledger.append(1, b"b"), lambda: ledger.prune(0)):
        with pytest.raises(LedgerFailed):
            attempt()
    assert contents(ledger) == [b"a"]
    ledger.close()
    assert reopened(tmp_path) in ([b"a"], [b"a", b"b"])


def test_blocks_are_synced_before_they_are_seen_and_segments_in_any_case(tmp_path, monkeypatch):
    events, really = [], segments._sync_data
    monkeypatch.setattr(segments, "_sync_data", lambda fd: (events.append("sync"), really(fd)))
    for fsync in ("block", "never"):
        events.clear()
        with open_small(tmp_path / fsync, fsync=fsync) as ledger:
            ledger.watch(lambda: events.append("seen"))
            for number in range(3):
                ledger.append(number, bytes(SMALL // 2))
        if fsync == "block":
            assert events == ["sync", "seen"] * 2 + ["sync", "sync", "seen", "sync"]
        else:
            assert events == ["seen"] * 2 + ["sync", "seen", "sync"]


# A folder that changes under a running node


def test_a_block_that_could_not_be_read_is_a_trouble_until_it_can_be_read_again(tmp_path):
    fill(tmp_path, 6)
    with open_small(tmp_path) as ledger:
        assert ledger.unread() is None
        oldest, *_, last = segments.listed(tmp_path)
        aside = oldest.rename(tmp_path / "aside")
        assert ledger.unread() is None  # nobody has asked for a block in it yet
        with pytest.raises(LedgerDamaged):
            ledger.read(0)
        for _ in range(2):
            assert "block 0: " in ledger.unread()
            assert "it is missing" in ledger.unread()
        assert ledger.missing() is None  # blocks can be appended
        aside.rename(oldest)
        assert ledger.unread() is None
        last.unlink()
        assert ledger.missing() == f"{last} is missing"


def test_a_segment_whose_header_is_written_while_it_is_scanned_has_no_rest(tmp_path, monkeypatch):
    """A reader of another process measures the new file before its header is in it."""
    segment, descriptor = segments.create(tmp_path, 7)
    os.close(descriptor)
    measured = types.SimpleNamespace(st_size=0)
    monkeypatch.setattr(segments.os, "fstat", lambda _: measured)
    scanned = segments.scan(segment.path)
    assert (scanned.segment.first, scanned.segment.next, scanned.rest) == (7, 7, 0)
