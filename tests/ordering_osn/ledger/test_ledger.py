"""The ledger: appending, reading, watching, pruning."""

import os
import random
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multicast.errors import UsageError
from ordering_osn.chain.blocks import new_block, seal
from ordering_osn.ledger import segments
from ordering_osn.ledger.errors import LedgerLocked, NotNext, NotYet, Pruned
from ordering_osn.ledger.ledger import Ledger
from tests.helpers.small import until
from tests.ordering_osn.helpers.ledgers import (
    Unsigned,
    block,
    contents,
    files,
    fill,
    newest,
    open_small,
    real_block,
    reopened,
)

# Appending and reading


def test_a_block_that_is_not_there_yet_is_said_so(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        ledger.append(0, b"a")
        with pytest.raises(NotYet) as caught:
            ledger.read(1)
        assert caught.value.retriable


@pytest.mark.parametrize("number", [0, 2])
def test_only_the_next_block_can_be_appended(tmp_path, number):
    with Ledger.open(tmp_path) as ledger:
        ledger.append(0, b"a")
        with pytest.raises(NotNext):
            ledger.append(number, b"b")
        assert contents(ledger) == [b"a"]


def test_blocks_that_are_no_longer_in_memory_are_read_from_the_file(tmp_path):
    blocks = [os.urandom(3 << 20) for _ in range(4)]
    with Ledger.open(tmp_path, fsync="never") as ledger:
        for number, raw in enumerate(blocks):
            ledger.append(number, raw)
        assert contents(ledger) == blocks
        assert ledger.read(3) is blocks[3]
        assert ledger.read(0) is not blocks[0]


# Watching


def test_a_watcher_is_called_by_the_appender_once_the_block_can_be_read(tmp_path):
    seen = []
    with Ledger.open(tmp_path) as ledger:
        unwatch = ledger.watch(
            lambda: seen.append((ledger.read(ledger.height - 1), threading.get_ident()))
        )
        ledger.append(0, b"a")
        ledger.append(1, b"b")
        unwatch()
        ledger.append(2, b"c")
    assert seen == [(b"a", threading.get_ident()), (b"b", threading.get_ident())]


def test_a_watcher_that_fails_stops_neither_the_appender_nor_the_others(tmp_path, caplog):
    seen = []
    with Ledger.open(tmp_path) as ledger:
        ledger.watch(lambda: 1 // 0)
        ledger.watch(lambda: seen.append(ledger.height))
        ledger.append(0, b"a")
    assert seen == [1]
    assert "a watcher of block 0 failed" in caplog.text


# One writer, and read-only openings


@pytest.mark.slow
def test_a_folder_has_one_writer(tmp_path):
    with Ledger.open(tmp_path) as ledger:
        ledger.append(0, b"a")
        with pytest.raises(LedgerLocked, match=str(os.getpid())):
            Ledger.open(tmp_path)
        code = (
            "import sys; from pathlib import Path; from ordering_osn.ledger.ledger import Ledger\n"
        )
        code += "Ledger.open(Path(sys.argv[1]))"
        other = subprocess.run(
            [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip
        assert "LedgerLocked" in other.stderr
        ledger.append(1, b"b")
    assert reopened(tmp_path) == [b"a", b"b"]


def test_a_running_ledger_can_be_looked_at_and_is_not_changed(tmp_path):
    with open_small(tmp_path) as ledger:
        for number in range(8):
            ledger.append(number, block(number))
        before = files(tmp_path)
        view = Ledger.open(tmp_path, read_only=True)
        ledger.append(8, block(8))
        assert contents(view) == [block(number) for number in range(8)]
        with pytest.raises(UsageError):
            view.append(8, block(8))
        view.close()
        ledger.append(9, block(9))
    assert files(tmp_path).keys() >= before.keys()


def test_who_looks_is_told_of_a_pruning_when_it_asks(tmp_path):
    fill(tmp_path, 20, make=real_block)
    view = Ledger.open(tmp_path, read_only=True)
    with open_small(tmp_path) as ledger:
        ledger.prune(13)
    with pytest.raises(Pruned, match="the oldest one is 13"):
        view.read(1)
    assert (view.base, view.height) == (13, 20)
    assert view.read(10) == real_block(10)


def test_looking_leaves_a_torn_tail_and_a_missing_index_as_they_are(tmp_path):
    fill(tmp_path, 8)
    with newest(tmp_path).open("ab") as file:
        file.write(b"torn")
    next(tmp_path.glob("*.index")).unlink()
    before = files(tmp_path)
    view = Ledger.open(tmp_path, read_only=True)
    assert contents(view) == [block(number) for number in range(8)]
    assert (view.torn_bytes, view.indexes_rebuilt) == (4, 1)
    assert files(tmp_path) == before


def test_looking_at_nothing_makes_nothing(tmp_path):
    with pytest.raises(UsageError):
        Ledger.open(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


class Forgetful(dict):
    """A cache of recent blocks that keeps none."""

    def __setitem__(self, number, raw):
        pass

    def pop(self, _number):
        return b""


# Pruning


def real_block_of(number, size):
    made = new_block(number, b"", [bytes([number % 256]) * size])
    seal(made, last_config=number - number % 4, consenter=b"", signer=Unsigned())
    return made.SerializeToString()


def test_pruning_keeps_the_rest_and_the_config_block_in_force(tmp_path):
    fill(tmp_path, 20, make=real_block)
    with open_small(tmp_path) as ledger:
        ledger.prune(13)
        for _ in range(2):
            assert (ledger.base, ledger.height) == (13, 20)
            assert ledger.read(10) == real_block(10)
            assert contents(ledger) == [real_block(number) for number in range(13, 20)]
            for number in (0, 9, 11, 12):
                with pytest.raises(Pruned, match="the oldest one is 13"):
                    ledger.read(number)
            ledger.prune(4)
        ledger.prune(15)  # a config block: no other is kept
        assert (tmp_path / "base").stat().st_size == segments.HEADER_BYTES
        with pytest.raises(Pruned):
            ledger.read(10)
    assert reopened(tmp_path) == [real_block(number) for number in range(15, 20)]


def test_a_kept_config_block_is_kept_by_later_prunings_too(tmp_path):
    def make(number):
        return real_block(number, config_every=1000)

    fill(tmp_path, 20, make=make)
    for below in (3, 11, 19):
        with open_small(tmp_path) as ledger:
            ledger.prune(below)
            assert ledger.read(0) == make(0)
    with open_small(tmp_path) as ledger:
        assert ledger.read(0) == make(0)
        assert contents(ledger) == [make(19)]


def test_pruning_syncs_the_blocks_that_stay_before_the_base_moves(tmp_path, monkeypatch):
    events, really = [], segments.write_base
    with Ledger.open(tmp_path, fsync="never") as ledger:
        for number in range(5):
            ledger.append(number, real_block(number))
        monkeypatch.setattr(segments, "sync_data", lambda _fd: events.append("sync"))
        monkeypatch.setattr(
            segments, "write_base", lambda *base: (events.append("base"), really(*base))
        )
        ledger.prune(3)
        assert events == ["sync", "base"]


def test_the_newest_block_is_never_pruned(tmp_path):
    fill(tmp_path, 3, make=real_block)
    with open_small(tmp_path) as ledger:
        with pytest.raises(UsageError, match="block 2"):
            ledger.prune(3)
        ledger.prune(2)
        assert contents(ledger) == [real_block(2)]
        ledger.append(3, b"x")
    assert reopened(tmp_path) == [real_block(2), b"x"]


def test_a_pruning_that_a_crash_cut_short_is_finished(tmp_path):
    fill(tmp_path / "full", 30, make=real_block)
    shutil.copytree(tmp_path / "full", tmp_path / "pruned")
    with open_small(tmp_path / "pruned") as ledger:
        ledger.prune(23)
    removed = sorted(files(tmp_path / "full").keys() - files(tmp_path / "pruned").keys())
    assert len(removed) > 6
    for crash in range(len(removed) + 1):
        folder = tmp_path / f"{crash}"
        shutil.copytree(tmp_path / "full", folder)
        shutil.copy(tmp_path / "pruned" / "base", folder / "base")
        (folder / "base.draft").write_bytes(b"half")
        for name in sorted(removed)[:crash]:
            (folder / name).unlink()
        assert reopened(folder) == [real_block(number) for number in range(23, 30)]
        assert files(folder).keys() == files(tmp_path / "pruned").keys()


@pytest.mark.slow
def test_readers_and_lookers_see_right_blocks_while_it_grows_and_is_pruned(tmp_path):
    blocks = [real_block(number) for number in range(250)]
    wrong, done, reads = [], threading.Event(), [0] * 4

    def read_one(ledger, number, which):
        try:
            if ledger.read(number) != blocks[number]:
                wrong.append(number)
            reads[which] += 1
        except Pruned:
            if number >= ledger.base:
                wrong.append(f"{number} is said to be pruned")

    def reader(which, chance):
        while not done.is_set():
            height = ledger.height
            read_one(ledger, chance.randrange(max(0, ledger.base - 3), height), which)

    def looker(which):
        while not done.is_set():
            view = Ledger.open(tmp_path, read_only=True)
            for number in range(view.base, view.height):
                read_one(view, number, which)

    def guarded(what, *arguments):
        try:
            what(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            wrong.append(error)

    with Ledger.open(tmp_path, fsync="never", segment_bytes_max=2000) as ledger:
        ledger._recent = Forgetful()  # so that readers read files
        ledger.append(0, blocks[0])
        threads = [
            threading.Thread(target=guarded, args=(reader, which, random.Random(which)))
            for which in range(2)
        ] + [threading.Thread(target=guarded, args=(looker, which)) for which in (2, 3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(1, 250):
                ledger.append(number, blocks[number])
                if number % 7 == 0:
                    ledger.prune(number - 5)
                if number == 125:
                    until(lambda: all(reads) or wrong)
        finally:
            done.set()
            for thread in threads:
                thread.join(timeout=120)
    assert wrong == []
    assert all(reads)


# Random operations, compared with a list

STEP = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 400)),
    st.tuples(st.just("tear"), st.integers(0, 600)),
    st.tuples(st.just("prune"), st.integers(0, 12)),
    st.tuples(st.just("reopen"), st.sampled_from([0, 100, 1000])),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(steps=st.lists(STEP, max_size=30))
def test_any_run_of_appends_crashes_prunings_and_restarts_is_what_a_list_would_be(
    steps, tmp_path_factory
):
    folder = Path(tmp_path_factory.mktemp("chain"))
    model, base = [], 0
    ledger = open_small(folder, fsync="never")
    for what, value in steps:
        if what == "append":
            model.append(real_block_of(len(model), value))
            ledger.append(len(model) - 1, model[-1])
        elif what == "prune" and base < value < len(model):
            ledger.prune(value)
            base = value
        elif what == "tear":  # a crash during an append that was never acknowledged
            ledger.close()
            unfinished = real_block_of(len(model), value)
            with open_small(folder) as doomed:
                doomed.append(len(model), unfinished)
            path = newest(folder)
            os.truncate(path, path.stat().st_size - 1 - value % len(unfinished))
            ledger = open_small(folder)
            assert ledger.torn_bytes
        elif what == "reopen":
            ledger.close()
            ledger = Ledger.open(folder, fsync="never", segment_bytes_max=value)
        assert (ledger.base, ledger.height) == (base, len(model))
        assert contents(ledger) == model[base:]
    ledger.close()
    assert reopened(folder) == model[base:]
    shutil.rmtree(folder)


def test_nobody_else_reads_a_ledger_whatever_the_umask(tmp_path):
    umask = os.umask(0)
    try:
        with closing(Ledger.open(tmp_path / "chain-a" / "ledger")) as ledger:
            ledger.append(0, real_block(0))
            made = [tmp_path / "chain-a" / "ledger", *(tmp_path / "chain-a" / "ledger").iterdir()]
            assert len(made) == 3
            assert [path.stat().st_mode & 0o077 for path in made] == [0, 0, 0]
    finally:
        os.umask(umask)
