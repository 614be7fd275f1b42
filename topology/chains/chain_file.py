"""The reader of the chain file, in which an operator names chains and the sets that they share.

`parse` takes the TOML text and gives the interest file that it stands for: a partition and a
consumer for each chain, a destination set for each set, and a consumer for each entry of
`readers`. It raises `InvalidInterests` with one sentence otherwise. No planning here.

    topic = "banks"                              # the data topic
    sets = ["pairs", ["a", "b", "c"]]            # or {chains = ["a", "b", "c"], rate = 5.0}
    readers = [["a", "b"]]                       # chains that DeliverMulti reads in one order
    [chains]                                     # or chains = ["a", "b", "c"], above sets
    a = {nodes = 4, rate = 100.0}                # nodes: default 1
    b = {}
    c = {}

A word stands for several sets: "pairs" for each two chains, "ring" for each two neighbours in the
order of the file, with the last and the first, "all" for the set of all chains. Rates are
messages/s. `[limits]` and `[hosts]` are those of the interest file.
"""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from typing import Any

from topology.interests import (
    NAME_LENGTH_MAX,
    InterestFile,
    InvalidInterests,
    from_document,
    read_count,
    read_number,
    read_toml,
    refuse_unknown,
)
from topology.tree import log_name

# Fabric's rule for a channel ID. All of it is allowed to Kafka, too.
CHAIN = re.compile(r"[a-z][a-z0-9.-]*", re.ASCII)
CHAINS_MAX = 64  # of one set: a bundle for more chains is refused
# Of a consumer of several chains. A chain's node counts 1: readers are rare, and the chains' own
# paths must not become longer for them.
READER_WEIGHT = 0.1
_KEYS = ("topic", "chains", "sets", "readers", "limits", "hosts")
_WORDS = ("pairs", "ring", "all")


def parse(text: str) -> InterestFile:
    """Give the interest file that the text of a chain file stands for.

    Raises `InvalidInterests`.
    """
    document = read_toml(text, "the chain file")
    refuse_unknown(document, _KEYS, "the chain file")
    for key in ("topic", "chains"):
        if key not in document:
            raise InvalidInterests(f"the chain file has no {key!r}")
    nodes, rates = _chains(document["chains"])
    sets: dict[str, tuple[str, ...]] = {}
    for number, entry in enumerate(_entries(document.get("sets", [])), start=1):
        members, rate = _entry(entry, tuple(nodes), f"entry {number} of sets")
        for chains in members:
            name = log_name(chains)
            if name in sets:
                raise InvalidInterests(f"set {name} is named twice: leave out one of the two")
            sets[name] = tuple(sorted(chains))
            if rate is not None:
                rates[name] = rate
    readers = _readers(document.get("readers", []), tuple(nodes))
    more: dict[str, Any] = {key: document[key] for key in ("limits", "hosts") if key in document}
    return from_document(
        {
            "topic": document["topic"],
            "partitions": list(nodes),
            "destinations": [list(chains) for chains in sets.values()],
            "consumer": [
                {"name": chain, "interest": [chain], "weight": count}
                for chain, count in nodes.items()
            ]
            + [
                # A chain's name begins with a letter, so this one is free.
                {"name": f"_reader-{number}", "interest": list(read), "weight": READER_WEIGHT}
                for number, read in enumerate(readers, start=1)
            ],
            "rates": rates,
            **more,
        }
    )


def _chains(value: Any) -> tuple[dict[str, int], dict[str, float]]:
    """Give how many nodes each chain has, in the order of the file, and the rates stated."""
    if not isinstance(value, list | dict):
        raise InvalidInterests(f"chains is {value!r}, not a list of names or a table")
    if not value:
        raise InvalidInterests("chains is empty: name at least one chain")
    nodes: dict[str, int] = {}
    rates: dict[str, float] = {}
    for name in value:
        if not isinstance(name, str) or not CHAIN.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
            raise InvalidInterests(
                f"chain {name!r} is not a valid name: use 1 to {NAME_LENGTH_MAX} characters of "
                f"a-z 0-9 . - and begin with a letter"
            )
        if name in nodes:
            raise InvalidInterests(f"chain {name} is named twice")
        about = value[name] if isinstance(value, dict) else {}
        if not isinstance(about, dict):
            raise InvalidInterests(
                f"chain {name} is {about!r}, not a table such as {{nodes = 4, rate = 100.0}}; "
                f"write topic and sets above [chains]"
            )
        refuse_unknown(about, ("nodes", "rate"), f"chain {name}")
        nodes[name] = read_count(about.get("nodes", 1), f"nodes of chain {name}")
        if "rate" in about:
            rates[name] = read_number(about["rate"], f"rate of chain {name}")
    return nodes, rates


def _readers(value: Any, chains: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Give the chains of each reader."""
    readers: dict[tuple[str, ...], None] = {}
    for number, entry in enumerate(_entries(value, "readers"), start=1):
        where = f"entry {number} of readers"
        if isinstance(entry, dict):
            raise InvalidInterests(f"{where} is a table: name the chains in a list")
        for read in _entry(entry, chains, where)[0]:
            members = tuple(sorted(read))
            if members in readers:
                raise InvalidInterests(
                    f"readers name {'+'.join(members)} twice: leave out one of the two"
                )
            readers[members] = None
    return list(readers)


def _entries(value: Any, what: str = "sets") -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        return [value]
    raise InvalidInterests(f"{what} is {value!r}, not a list or one of {', '.join(_WORDS)}")


def _entry(
    entry: Any, chains: tuple[str, ...], where: str
) -> tuple[list[tuple[str, ...]], float | None]:
    """Give the sets that one entry of `sets` stands for, and their rate if it states one."""
    rate = None
    if isinstance(entry, dict):
        refuse_unknown(entry, ("chains", "rate"), where)
        if "chains" not in entry:
            raise InvalidInterests(f"{where} has no 'chains'")
        rate = read_number(entry["rate"], f"rate of {where}") if "rate" in entry else None
        entry = entry["chains"]
    if isinstance(entry, str):
        return _of_word(entry, chains, where), rate
    if not isinstance(entry, list):
        raise InvalidInterests(
            f"{where} is {entry!r}, not a list of chains, a table, or one of {', '.join(_WORDS)}"
        )
    for number, name in enumerate(entry):
        if name not in chains:
            raise InvalidInterests(f"{where} names {name!r}, which is not in chains: add it there")
        if name in entry[:number]:
            raise InvalidInterests(f"{where} names chain {name} twice")
    if len(entry) == 1:
        raise InvalidInterests(
            f"{where} is the single chain {entry[0]}, whose own log is always there: remove the "
            f"entry"
        )
    return [_within_bounds(tuple(entry), where)], rate


def _of_word(word: str, chains: tuple[str, ...], where: str) -> list[tuple[str, ...]]:
    if word not in _WORDS:
        raise InvalidInterests(f"{where} is {word!r}, not one of {', '.join(_WORDS)}")
    if len(chains) == 1:
        raise InvalidInterests(f"{where} is {word!r}, but there is only the chain {chains[0]}")
    if word == "all":
        return [_within_bounds(chains, where)]
    if word == "pairs":
        return list(combinations(chains, 2))
    neighbours: list[tuple[str, ...]] = list(pairwise(chains))
    return neighbours if len(chains) == 2 else [*neighbours, (chains[-1], chains[0])]


def _within_bounds(chains: tuple[str, ...], where: str) -> tuple[str, ...]:
    if not chains:
        raise InvalidInterests(f"{where} is empty: name two chains or more")
    if len(chains) > CHAINS_MAX:
        raise InvalidInterests(
            f"{where} has {len(chains)} chains, and a transaction has at most {CHAINS_MAX}: name "
            f"fewer"
        )
    return chains
