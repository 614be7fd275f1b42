"""A worker of Faust that adds up what each account moves in each window of time, exactly once.

    AMCAST_BOOTSTRAP=HOST:PORT AMCAST_TOPIC=faust_totals \
        python examples/faust_totals/totals.py worker

A payload is pairs of account and amount: "anna -5 bert 5". A window is WINDOW_S (60) seconds of the
messages' times in Kafka, so a message falls into the same one whenever it is read again. Each
new total is appended to the file TOTALS (totals.txt) as `ACCOUNT WINDOW TOTAL`.

After a kill, the messages after the last commit come again, and the table may have their effects
already. So each entry holds the position of the last message that has changed it; a message
that is not after it has no second effect. Positions grow in the order of delivery.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from pathlib import Path

import faust

from amcast import Cursor
from amcast.faust import ordered

_FILE = Path(os.environ.get("TOTALS", "totals.txt"))
_WINDOW_S = float(os.environ.get("WINDOW_S", "60"))
_SESSION_S = 6.0  # the least that Kafka allows: a worker that is killed delays the next one so long

app = faust.App(
    os.environ.get("APP_ID", "totals"),
    broker=f"kafka://{os.environ['AMCAST_BOOTSTRAP']}",
    store="memory://",  # the table is read again from its changelog at each start
    datadir=os.environ.get("DATADIR", "totals-data"),
    topic_partitions=1,  # an ordered stream is one sequence: its tables have one partition
    broker_session_timeout=_SESSION_S,
    broker_heartbeat_interval=_SESSION_S / 3,  # Kafka's advice
    web_enabled=False,
)
totals = app.Table("totals", default=list, partitions=1).tumbling(timedelta(seconds=_WINDOW_S))


def position(cursor: Cursor) -> list[int]:
    """Give what grows from message to message: over runs, records and epochs."""
    return [cursor.epoch, cursor.record, cursor.run, cursor.next]


def write_down(account: str, window: int, total: int) -> None:
    """Append a line to the file."""
    with _FILE.open("a") as file:
        file.write(f"{account} {window} {total}\n")


def amounts(payload: bytes | None) -> Counter[str] | None:
    """Read what each account moves; None: the payload is not pairs of account and amount."""
    moved: Counter[str] = Counter()
    try:
        words = (payload or b"").decode().split()
        for account, amount in zip(words[::2], words[1::2], strict=True):
            moved[account] += int(amount)
    except ValueError:
        return None
    return moved


@app.agent(ordered(app, consumer="totals"))
async def add_up(stream: faust.Stream) -> None:
    """Add each pair of each message to its account's total of the window."""
    async for message in stream:
        here = position(message.cursor)
        moved = amounts(message.payload)
        if moved is None:  # an error would have Faust give the same message again and again
            app.log.warning("%s is left out: it is not pairs of amounts", message.message_id)
            continue
        for account, amount in moved.items():
            total, last = totals[account].current() or (0, [])
            if last < here:
                total += amount
                totals[account] = [total, here]
            write_down(account, message.timestamp_ms // int(_WINDOW_S * 1000), total)


if __name__ == "__main__":
    app.main()
