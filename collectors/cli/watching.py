"""What `amcast collectors status --wait` waits for.

It reads the order once and then follows it (`collectors/live/observer.py`).
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import Any

import typer

from collectors.live.facts import LivePicture, mean
from collectors.live.observer import observe
from multicast.errors import TimedOut
from multicast.settings import Settings
from topology.output import Output

WAIT_S = 60.0  # forty times what a deployment of 200 collectors takes (docs/operating.md)


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
        document, line = observer.look(_status_of)
    typer.echo(json.dumps({**document, "healthy": True}) if output is Output.JSON else line)


def _status_of(picture: LivePicture) -> tuple[dict[str, Any], str]:
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
    at = time.strftime("%H:%M:%S", time.localtime(picture.now_ms / 1000))
    rate = sum(mean(rates) for rates in picture.log_rates.values())
    line = (
        f"{at} epoch {picture.plan.epoch}: {len(rows) - len(bad)} of {len(rows)} "
        f"collectors up, {rate:.0f} messages/s, {sum(picture.lags.values())} wait"
    )
    line += "".join(f"; {name} is {state}" for name, state in bad.items())
    plan = picture.plan
    head = {"schema_version": 1, "topic": plan.topic, "epoch": plan.epoch, "at": picture.now_ms}
    return {**head, "collectors": rows}, line
