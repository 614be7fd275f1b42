"""What `amcast collectors status` and `lag` print again and again, and what they wait for.

Both read the order once and then follow it (`collectors/live/observer.py`), so a look costs little.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import typer

from collectors.live.facts import LivePicture, mean
from collectors.live.observer import observe
from multicast.errors import TimedOut
from multicast.settings import Settings
from topology.output import Output

WAIT_S = 60.0  # forty times what a deployment of 200 collectors takes (docs/operating.md)
_EVERY_S = 1.0  # a person reads no faster
_FIRST_S = 30.0  # for the control topic and the streams to be read to their ends
_ANSWERS_S = 3.0  # then for the status pages; the observer waits a second for one that hangs

# Makes of a picture a JSON document and a line for people.
Described = Callable[[LivePicture], tuple[dict[str, Any], str]]


def watch(chosen: Settings, described: Described, output: Output, timeout_s: float | None) -> None:
    """Print a line a second, until Ctrl-C or for `timeout_s` seconds after the first."""
    for document, line in _described(chosen, described, timeout_s):
        typer.echo(json.dumps(document) if output is Output.JSON else line)


def wait_healthy(chosen: Settings, output: Output, timeout_s: float) -> None:
    """Wait until every collector of the running epoch is up; raises `TimedOut`, which says why."""
    deadline = time.monotonic() + timeout_s
    with closing(observe(chosen)) as observer:
        observer.first(timeout_s)
        while (unhealthy := observer.look(lambda picture: picture.unhealthy)) or observer.error:
            if not observer.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                states = "; ".join(f"{name} is {state}" for name, state in unhealthy.items())
                why = observer.error or states
                raise TimedOut(f"not all collectors are up after {timeout_s:g} s: {why}")
        document, line = observer.look(status_of)
    typer.echo(json.dumps({**document, "healthy": True}) if output is Output.JSON else line)


def _described(
    chosen: Settings, described: Described, timeout_s: float | None
) -> Iterator[tuple[dict[str, Any], str]]:
    with closing(observe(chosen)) as observer:
        observer.first(_FIRST_S)
        observer.first_answers(_ANSWERS_S)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        yield observer.look(described)
        due = time.monotonic() + _EVERY_S
        while deadline is None or time.monotonic() < deadline:
            observer.wait(_EVERY_S)
            if observer.error:
                raise TimedOut(observer.error)
            if time.monotonic() >= due:
                due += _EVERY_S
                yield observer.look(described)


def lag_of(picture: LivePicture) -> tuple[dict[str, Any], str]:
    """Describe the lag of each log; the line names those that have one."""
    lags = picture.lags
    late = ", ".join(f"{name} {lag}" for name, lag in lags.items() if lag)
    line = f"{_clock(picture)} total {sum(lags.values())}" + (f": {late}" if late else "")
    return {**_head(picture), "total": sum(lags.values()), "logs": lags}, line


def status_of(picture: LivePicture) -> tuple[dict[str, Any], str]:
    """Describe each collector; the line names those that are not up."""
    rows = [
        {
            "collector": name,
            "parent": picture.plan.collector(name).parent,
            "state": view.state.value,
            "why": view.sentence,
            "lag": view.lag,
            "rate": round(view.rate, 1),
            "restarts": view.restarts,
            "changed_at": view.changed_ms,
        }
        for name, view in picture.collectors.items()
    ]
    bad = picture.unhealthy
    rate = sum(mean(rates) for rates in picture.log_rates.values())
    line = (
        f"{_clock(picture)} epoch {picture.plan.epoch}: {len(rows) - len(bad)} of {len(rows)} "
        f"collectors up, {rate:.0f} messages/s, {sum(picture.lags.values())} wait"
    )
    line += "".join(f"; {name} is {state}" for name, state in bad.items())
    return {**_head(picture), "collectors": rows}, line


def _head(picture: LivePicture) -> dict[str, Any]:
    plan = picture.plan
    return {"schema_version": 1, "topic": plan.topic, "epoch": plan.epoch, "at": picture.now_ms}


def _clock(picture: LivePicture) -> str:
    return time.strftime("%H:%M:%S", time.localtime(picture.now_ms / 1000))
