"""Coordination on the order: consensus, versioned updates, locks with fencing tokens.

A command is a message. Every replica applies the commands in the one order in which all deliver
them, so all have the same state at the same position. A service for coordination is not needed.

    propose   the first proposal of an instance decides it, for ever: consensus
    set       takes effect only at the expected version, else it changes nothing, at nobody
    acquire   the lock's holder, with a token that grows with every new holder; leader election
    release   by the token: by the holder, or by whoever takes the holder for dead

A command that is applied twice in a row has the effect of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from multicast import Batch, Consumer, Message, MessageID, Producer, TimedOut
from multicast.errors import UsageError

NESTED_MAX = 100  # brackets of a command: how many a parser can nest depends on its stack
_POLL_S = 0.5  # one wait; the bound below counts them
_POLLS_MAX = 120  # a replica that does not come past a stored message within a minute is stuck


def is_command(document: Any) -> bool:
    """Whether a document is a command; others change nothing, at any replica."""
    match document:
        case (
            {"do": "propose", "instance": str(), "value": _}
            | {"do": "set", "path": str(), "data": _, "version": int()}
            | {"do": "acquire", "lock": str(), "owner": str()}
            | {"do": "release", "lock": str(), "token": int() | None}
        ):
            return True
    return False


def parse(payload: bytes | None) -> Any:
    """Read the document of a message; None: there is none, or it is no command of ours."""
    text = payload or b"null"
    if text.count(b"{") + text.count(b"[") > NESTED_MAX:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


class RecipeState:
    """What all replicas have in common; `apply` depends on the state and the command alone."""

    def __init__(self) -> None:
        self.decided: dict[str, Any] = {}
        self.versions: dict[str, tuple[int, Any]] = {}
        self.holders: dict[str, tuple[str, int]] = {}
        self.tokens: dict[str, int] = {}

    def apply(self, command: Any) -> Any:
        """Apply a command and give its answer; the same answer at every replica."""
        if not is_command(command):
            return None  # a foreign message
        match command:
            case {"do": "propose", "instance": instance, "value": value}:
                return self.decided.setdefault(instance, value)
            case {"do": "set", "path": path, "data": data, "version": expected}:
                version, _ = self.versions.get(path, (0, None))
                if version != expected:
                    return None
                self.versions[path] = (version + 1, data)
                return version + 1
            case {"do": "acquire", "lock": lock, "owner": owner}:
                if lock not in self.holders:
                    self.tokens[lock] = self.tokens.get(lock, 0) + 1
                    self.holders[lock] = (owner, self.tokens[lock])
                holder, token = self.holders[lock]
                return token if holder == owner else None
            case {"do": "release", "lock": lock, "token": token}:
                if lock not in self.holders or self.holders[lock][1] != token:
                    return False
                del self.holders[lock]
                return True
        raise AssertionError(command)

    def as_text(self) -> str:
        """Give the state as one text, to compare replicas."""
        return json.dumps([self.decided, self.versions, self.holders, self.tokens], sort_keys=True)


class Replica:
    """Follows the commands to one declared set of partitions."""

    def __init__(self, producer: Producer, consumer: Consumer, to: Iterable[str]) -> None:
        self._producer = producer
        self._consumer = consumer
        self._to = frozenset(to)
        self._own: dict[MessageID, Any] = {}
        self.state = RecipeState()

    def send(self, do: str, **fields: Any) -> MessageID:
        """Multicast a command; return when all in-sync replicas of Kafka have stored it.

        Raises `UsageError` for what is no command: no replica would do anything.
        """
        payload = json.dumps({"do": do, **fields}).encode()
        if not is_command(parse(payload)):
            raise UsageError(f"{do} with {', '.join(fields) or 'nothing'} is no command")
        message_id = self._producer.multicast(payload, to=self._to).accepted()
        self._own[message_id] = None
        return message_id

    def call(self, do: str, **fields: Any) -> Any:
        """Send a command, wait until it is applied here, and give its answer."""
        message_id = self.send(do, **fields)
        self.read_at_least(message_id)
        return self._own.pop(message_id)

    def follow(self, batches: Iterable[Batch]) -> None:
        """Apply the commands that the consumer delivers."""
        for batch in batches:
            for record in batch.records:
                message = Message(batch, record)
                answer = self.state.apply(parse(message.payload))
                if message.message_id in self._own:
                    self._own[message.message_id] = answer

    def read_at_least(self, message_id: MessageID) -> RecipeState:
        """Give the state once it contains a message: never an older one, perhaps a newer one.

        Replicas are at the same place of the order at different times. Who hands the ID of a
        message to somebody else makes sure that this one sees at least its effect. Raises
        `TimedOut` if the replica does not come so far within a minute.
        """
        for _ in range(_POLLS_MAX):
            if self._consumer.seen(self._to).next > message_id.offset:
                return self.state
            self.follow(self._consumer.poll(_POLL_S))
        raise TimedOut(f"the replica did not come past {message_id}")


class Guarded:
    """A resource outside of the order that lets the newest holder of a lock in, and no earlier one.

    A holder that was frozen does not know that its lock was released and given to somebody else.
    """

    def __init__(self) -> None:
        self.token_max = 0
        self.writes: list[str] = []

    def write(self, text: str, token: int) -> bool:
        """Write with a token; False: a newer holder was here before."""
        if token < self.token_max:
            return False
        self.token_max = token
        self.writes.append(text)
        return True
