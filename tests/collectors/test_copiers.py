"""Copiers beside collectors: who is begun again, and how all end. A small program is the copier."""

import asyncio
import sys

import pytest

from collectors import copiers
from tests.helpers.small import until

PROGRAM = """
import signal, sys
file, code = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(file, "a").write("x")
if code < 0:
    signal.pause()  # until it is killed
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("code", "fenced_s", "again"),
    [(5, 0.0, True), (5, 3600.0, False), (4, 3600.0, True), (2, 0.0, False), (-1, 0.0, False)],
)
def test_who_was_fenced_is_begun_again_and_all_end_together(
    code, fenced_s, again, tmp_path, monkeypatch
):
    for name, seconds in (("_LOOK_EVERY_S", 0.01), ("_FENCED_S", fenced_s), ("_ENDS_S", 0.1)):
        monkeypatch.setattr(copiers, name, seconds)
    files, looks = [tmp_path / "C1=A", tmp_path / "C2=B"], []
    copies = copiers.Copiers(
        [file.name for file in files],
        lambda: looks.append(0) or True,
        lambda text: [sys.executable, "-c", PROGRAM, str(tmp_path / text), str(code)],
    )

    def begun(least):
        return all(file.exists() and len(file.read_text()) >= least for file in files)

    def looked():
        until(lambda: code < 0 or all(row["ended"] == code for row in copies.status()))
        before = len(looks)
        until(lambda: len(looks) > before + 9)

    async def run():
        await copies.start()
        await asyncio.to_thread(until, lambda: begun(2 if again else 1))
        if not again:
            await asyncio.to_thread(looked)
        await copies.stop()

    asyncio.run(run())
    assert [row["pid"] for row in copies.status()] == [None, None]
    assert again or [file.read_text() for file in files] == ["x", "x"]
