"""A desk for bundles, with small chains and a log in memory; rule, filters and keys are real."""

import asyncio
import threading

from multicast.drivers.protocol import Appended
from ordering_osn.api.channels import Refused
from ordering_osn.api.metrics import Metrics
from ordering_osn.chain.bundles.bundle import encode_bundle, make_bundle
from ordering_osn.chain.bundles.metadata import metadata_of
from ordering_osn.chain.bundles.rule import BundleRule, RuleState
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.node.bundles.desk import BundleDesk
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.bundles import AB, marker


def signed_bundle(chains=AB, *, signer=None, parts_by=None, expiry=0, **envelopes):
    """A bundle of User1 for chains with real configs; `envelopes` replaces parts, by chain."""
    signer = signer or configs.org_user()
    made = {chain: configs.transaction(chain, signer=parts_by or signer) for chain in chains} | {
        name.replace("_", "-"): raw for name, raw in envelopes.items()
    }
    return make_bundle(made, signer=signer, expiry=expiry)


def after_updates(config, count):
    """The config with the sequence that it has after `count` updates."""

    def change(new):
        new.sequence += count

    return ChannelConfig(config.channel_id, configs.changed(config, change))


class SmallStatus:
    """Whether a small chain takes envelopes."""

    def __init__(self, name=""):
        self.name, self.why_not = name, None

    async def ready(self, _timeout_s, *, bundles):
        assert bundles
        if self.why_not is not None:
            raise Refused(503, self.why_not, self.name)


class SmallNode:
    """A chain as the desk sees it. `read` is how far it has read the set's log."""

    def __init__(self, name, chains=AB):
        self.name = name
        self._config = configs.genesis(name)
        self.status = SmallStatus(name)
        self.rule = BundleRule(RuleState(chains, 0))
        self._watchers = []
        self.offset = 0
        self.height = 1
        self.pending = []

    @property
    def config(self):
        return self._config

    @config.setter
    def config(self, config):
        self._config = config
        self.changed()

    def changed(self):
        for callback in list(self._watchers):
            callback()

    @property
    def watchers(self):
        return len(self._watchers)

    def watch(self, callback):
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def markers(self, chains):
        assert chains == self.rule.chains
        return tuple(self.rule.marker(chain) for chain in chains)


class SmallPosts:
    """A log of one set. `outcomes`: what becomes of the next postings, instead of being stored."""

    def __init__(self):
        self.declared = True
        self.records = []
        self.started = 0
        self.refuses = None  # an error that `start` raises
        self.outcomes = []
        self.held = None  # futures that are not answered yet, where it is a list
        self.on_store = None

    async def declares(self, to):
        return self.declared and to is not None

    async def end(self, to):
        assert len(to) > 1
        if self.refuses is not None:
            raise self.refuses
        return len(self.records)

    async def start(self, raw, to):
        assert len(to) > 1
        if self.refuses is not None:
            raise self.refuses
        self.started += 1
        future = asyncio.get_running_loop().create_future()
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is None:
            self.records.append(raw)
            outcome = Appended(len(self.records) - 1)
            if self.on_store is not None:
                self.on_store()
        if self.held is None:
            future.set_result(outcome)
        else:
            self.held.append((future, outcome))
        return future

    def release(self):
        held, self.held = self.held, None
        for future, outcome in held:
            future.set_result(outcome)


class SmallDesk:
    """A desk, its chains of one set, and the set's log."""

    def __init__(self, chains=AB, *, runs=None, ready_s=30.0, introduce=True, **options):
        self.chains = chains
        self.nodes = {name: SmallNode(name, chains) for name in runs or chains}
        self.posts = SmallPosts()
        self.closed = {}
        self.metrics = Metrics()
        self.desk = BundleDesk(
            self.nodes,
            self.posts,
            metrics=self.metrics,
            clock=lambda: configs.NOW,
            closed=self.closed,
            ready_s=ready_s,
            **options,
        )
        if introduce:
            self.introduce()
            self.read_all()

    def introduce(self):
        """Store the markers of the present configs of all chains."""
        for name in self.chains:
            config = self.nodes[name].config if name in self.nodes else configs.genesis(name)
            self.posts.records.append(marker(name, config.sequence, block=config.sequence))

    def read(self, name):
        """Have one chain read its next record; gives whether there was one."""
        node = self.nodes[name]
        if node.offset == len(self.posts.records):
            return False
        offset = node.offset
        node.offset += 1
        outcome = node.rule.step(offset, self.posts.records[offset], self.chains)
        if hasattr(outcome, "bundle"):
            node.pending.append(outcome.bundle)
        self.desk.read(name, self.chains, offset, outcome)
        return True

    def read_all(self):
        for name in self.nodes:
            while self.read(name):
                pass

    def cut(self, name):
        """Have one chain write its pending parts into a durable block."""
        node = self.nodes[name]
        parts = [metadata_of(made, name, index) for index, made in enumerate(node.pending)]
        node.pending = []
        self.desk.written(name, node.height, parts)
        node.height += 1

    def update(self, name, count=1):
        """Put a newer config of a chain in force; its marker is not posted."""
        node = self.nodes[name]
        node.config = after_updates(node.config, count)

    def mark(self, name):
        """Store the marker of a chain's present config."""
        sequence = self.nodes[name].config.sequence
        self.posts.records.append(marker(name, sequence, block=sequence))

    async def submit(self, made):
        return await self.desk.submit(made if isinstance(made, bytes) else encode_bundle(made))

    async def fate(self, made, wait_s=0.0):
        return await self.desk.status(made.id, wait_s)

    async def turns(self, holds):
        """Let the loop turn until something holds."""
        async with asyncio.timeout(60.0):
            while not holds():  # noqa: ASYNC110 - of whatever kind it is
                await asyncio.sleep(0)


def in_thread(call):
    """Run a call on a thread of its own, as the chains' loops do; gives when it has ended."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive()
