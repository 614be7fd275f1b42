"""Administration: topics, settings, and the identity of a cluster.

Calls take names and numbers and return plain values. Brokers learn of a new topic one after the
other, so calls that create something wait until a broker reports it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType, UserScramCredentialUpsertion

from multicast.drivers.access import CLUSTER, Access
from multicast.drivers.client_settings import REQUEST_TIMEOUT_S
from multicast.drivers.closing import ClosedAtEnd
from multicast.drivers.kafka.admin_facts import (
    Holders,
    OpenTransaction,
    TopicSpec,
    called,
    described,
    first_led,
    holders_of,
    largest_replicas,
    opened_by,
)
from multicast.drivers.kafka.connection import client_of_ours, kafka_python_settings
from multicast.drivers.kafka.quiet import attach, quiet
from multicast.drivers.kafka.transports import ConnectionManager
from multicast.drivers.protocol import TopicPartition
from multicast.drivers.tls_files import check_files
from multicast.errors import (
    AccessDenied,
    AmcastError,
    ClusterUnreachable,
    NotAuthorized,
    TimedOut,
    UsageError,
)

# A plain choice: an operator would notice 0.5 s at each wait, and 5 ms would only add requests.
_RETRY_S = 0.05
# Calls that address one broker after the other skip one that takes longer: with the full request
# time-out, three dead brokers would cost half a minute.
_SILENT_BROKER_S = 3.0
# A quota on creations may allow one partition in some seconds; longer waits are the operator's.
_THROTTLED_S_MAX = 120.0
_BROKERS_WORDS = re.compile("[ (]error_message='([^']+)'")  # the package quotes the whole answer
_LOG = logging.getLogger("amcast.kafka_python")
_pause = threading.Event()  # never set: Kafka sends no event to wait for, so calls are repeated


class Admin(ClosedAtEnd):
    """Administrative calls, for any thread; each request blocks for the time-out at most.

    Raises `ClusterUnreachable` if no broker answers in time, `AccessDenied` if the brokers refuse,
    `TimedOut` if a change does not show in time, `UsageError` if a name or number is unusable, and
    `AmcastError` for any other refusal by the brokers.
    """

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._bootstrap = bootstrap
        self._access = Access.of(bootstrap, client or {})
        self._timeout_s = request_timeout_s
        settings = kafka_python_settings(client or {})
        check_files(client or {})
        attach()
        try:
            with quiet():
                self._admin = KafkaAdminClient(
                    bootstrap_servers=bootstrap,
                    bootstrap_timeout_ms=int(request_timeout_s * 1000),
                    request_timeout_ms=int(request_timeout_s * 1000),
                    kafka_client=client_of_ours,
                    **settings,
                )
        except (kafka_errors.KafkaError, OSError) as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise UsageError(
                f"The bootstrap addresses {bootstrap} are not usable: {error}."
            ) from error

    def cluster_id(self) -> str:
        """Return the cluster's ID."""
        return str(self._ask(self._manager.describe_cluster).cluster_id)

    def broker_ids(self) -> list[int]:
        """Return the registered brokers (before Kafka 4.0: those that run), ascending."""
        cluster = self._ask(self._manager.describe_cluster)
        return sorted(broker.broker_id for broker in cluster.brokers)

    def members(self) -> tuple[str, frozenset[int]]:
        """Return the cluster's ID and the brokers that are registered and not fenced."""
        cluster = self._ask(self._manager.describe_cluster)
        alive = [broker.broker_id for broker in cluster.brokers if not broker.is_fenced]
        return str(cluster.cluster_id), frozenset(alive)

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the number of Kafka partitions of each topic that exists."""
        return {name: len(topic["partitions"]) for name, topic in self._topics(topics).items()}

    def replications(self, topics: Sequence[str]) -> dict[str, int]:
        """Return for each topic that exists the smallest number of replicas of its partitions."""
        held = self.holders(topics)
        return {name: min(len(replicas) for _, _, replicas, _ in held[name]) for name in held}

    def holders(self, topics: Sequence[str]) -> dict[str, list[Holders]]:
        """Return (number, leader, replicas, in-sync replicas) of each Kafka partition, by topic.

        Topics that do not exist are left out. The leader is -1 if there is none.
        """
        known = self._topics(topics)
        return {name: sorted(map(holders_of, known[name]["partitions"])) for name in known}

    def topic_ids(self, topics: Sequence[str]) -> dict[str, uuid.UUID]:
        """Return the IDs of the topics that exist; a topic that is recreated has another ID."""
        known = self._topics(topics)
        return {name: uuid.UUID(str(known[name]["topic_id"])) for name in known}

    def create_topics(self, topics: Mapping[str, TopicSpec]) -> list[str]:
        """Create missing topics and add missing Kafka partitions; return the created names.

        Existing topics keep their settings and replication. The call is idempotent. Afterwards
        every requested Kafka partition has a leader.
        """
        existing = self.partitions(list(topics))
        missing = {name: spec for name, spec in topics.items() if name not in existing}
        created = []
        for name, spec in missing.items():
            if self._create(name, spec.description()):
                created.append(name)
            else:
                existing.update(self.partitions([name]))
        for name, count in existing.items():
            if count < topics[name].partitions:
                self.add_partitions(name, topics[name].partitions)
        self._wait_for_leaders({name: spec.partitions for name, spec in topics.items()})
        return created

    def would_make(self, name: str, spec: TopicSpec) -> tuple[int, dict[str, str]] | None:
        """Return the replication and settings that a new topic would get, without creating it.

        Returns None if the topic exists. Raises `AmcastError` if the brokers would refuse it.
        """
        answer = self._ask(
            lambda: self._admin.create_topics({name: spec.description()}, validate_only=True),
            needs=("Create", "topic", name),
            ignore=(kafka_errors.TopicAlreadyExistsError,),
        )
        if answer is None:
            return None
        (topic,) = answer["topics"]
        # The brokers send no settings to a user without DescribeConfigs; ours are known.
        reported = (topic.get("configs") or {}).items()
        settings = {key: str(setting["value"]) for key, setting in reported}
        return int(topic["replication_factor"]), {**spec.settings, **settings}

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Grow a topic to `partitions` in total; fewer than it has is a `UsageError`."""
        try:
            self._ask(
                lambda: self._admin.create_partitions({topic: partitions}),
                needs=("Alter", "topic", topic),
            )
        except AccessDenied:
            raise
        except AmcastError:
            # Another process may have added them, or an answer was lost.
            count = self.partitions([topic]).get(topic, 0)
            if count == partitions:
                return
            if count > partitions:
                raise UsageError(
                    f"Topic {topic} has {count} partitions, more than {partitions}."
                ) from None
            raise
        self._wait_for_leaders({topic: partitions})

    def place_on_brokers(self, topic: str, settings: Mapping[str, str]) -> dict[int, int]:
        """Create a topic with one Kafka partition on each running broker; return them by broker.

        The Kafka partitions have one replica each: while a broker is down, so is its partition. An
        existing topic is kept; a broker that leads none of its partitions gets one. The call is
        idempotent, but two concurrent calls may place two partitions on a broker.
        """
        _, alive = self.members()
        count, placed = self._placed(topic)
        missing = sorted(alive - placed.keys())
        if missing and count:
            growth = {"count": count + len(missing), "assignments": [[node] for node in missing]}
            try:
                self._ask(
                    lambda: self._admin.create_partitions({topic: growth}),
                    needs=("Alter", "topic", topic),
                )
            except AmcastError:
                # Another process may have added them, or the broker had old metadata.
                if self._placed(topic)[0] <= count:
                    raise
        elif missing:
            assignments = {number: [broker] for number, broker in enumerate(missing)}
            self._create(topic, {"assignments": assignments, "configs": dict(settings)})

        def everywhere() -> bool:
            nonlocal placed
            _, placed = self._placed(topic)
            return alive <= placed.keys()

        if missing:
            self._wait(everywhere, f"{topic} on every broker")
        return placed

    def topic_settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return all settings in force of these topics, defaults included."""
        by_topic: dict[str, dict[str, str]] = {}

        def complete() -> bool:
            nonlocal by_topic
            by_topic = self._settings(ConfigResourceType.TOPIC, list(topics))
            return all(by_topic.get(name) for name in topics)

        # A broker that does not know a new topic yet reports no settings for it.
        self._wait(complete, f"the settings of {', '.join(topics)}")
        return {name: by_topic[name] for name in topics}

    def change_settings(self, topic: str, settings: Mapping[str, str]) -> str:
        """Change these settings of a topic, and no others; return why that was refused, or ""."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(settings))
        change = partial(self._admin.alter_configs, [resource], raise_on_unknown=False)
        answer = str(self._ask(change)["topic"][topic])
        return "" if answer == "OK" else answer

    def broker_settings(self) -> dict[int, dict[str, str]]:
        """Return all settings in force of every broker that answers, by broker."""
        kind = ConfigResourceType.BROKER
        answers = self._each_broker(
            lambda broker: self._describe(kind, [str(broker)], broker), ("DescribeConfigs", CLUSTER)
        )
        return {broker: settings[str(broker)] for broker, settings in answers.items()}

    def groups(self, prefix: str) -> dict[str, str]:
        """Give the consumer groups with this prefix, sorted, and the state of each, as "Empty".

        Asks every broker that answers. They silently leave out groups that this user may not
        describe.
        """
        answers = self._each_broker(
            lambda broker: self._admin.list_groups(broker_ids=[broker]), ("Describe", CLUSTER)
        )
        listed = [group for groups in answers.values() for group in groups]
        states = {str(each["group_id"]): str(each.get("group_state", "")) for each in listed}
        return {name: states[name] for name in sorted(states) if name.startswith(prefix)}

    def sizes(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """Return the bytes on disk of each Kafka partition; of several replicas the largest.

        Brokers that do not answer are left out.
        """
        answers = self._each_broker(
            lambda broker: self._admin.describe_log_dirs(list(topics), brokers=[broker]),
            ("Describe", CLUSTER),
        )
        folders = [folder for answer in answers.values() for folder in answer[0]["log_dirs"]]
        if not folders:
            raise self._access.lacks("Describe", CLUSTER)
        return largest_replicas(folders)

    def controller_time_ms(self) -> tuple[int, int]:
        """Return the number of the leading controller and its clock in ms since 1970.

        No other answer of Kafka holds a broker's clock.
        """
        needs = ("Describe", CLUSTER)
        for topic in self._ask(self._admin.describe_metadata_quorum, needs=needs)["topics"]:
            for quorum in topic["partitions"]:
                for voter in quorum["current_voters"]:
                    if voter["replica_id"] == quorum["leader_id"]:
                        return int(voter["replica_id"]), int(voter["last_caught_up_timestamp"])
        raise AmcastError(
            f"The brokers at {self._bootstrap} report no leading controller; start a majority."
        )

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[OpenTransaction]]:
        """Return the open transactions of each Kafka partition, ascending by first offset."""
        wanted = [KafkaTopicPartition(*partition) for partition in partitions]
        states = self._ask(lambda: self._admin.describe_producers(wanted))
        return {
            TopicPartition(partition.topic, partition.partition): [
                described(self._ask, self._admin, transaction)
                for transaction in opened_by(state.active_producers)
            ]
            for partition, state in states.items()
        }

    def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete those topics that exist, and wait until the brokers no longer report them."""
        existing = list(self._topics(topics))
        if existing:
            self._ask(
                lambda: self._admin.delete_topics(existing),
                needs=("Delete", "topic", ", ".join(existing)),
                ignore=(kafka_errors.UnknownTopicOrPartitionError,),
            )
        self._wait(lambda: not self._topics(existing), f"topics {existing} to be deleted")

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Raise the log start offsets to `before`, as retention does; lower records are lost."""
        starts = {KafkaTopicPartition(*log): offset for log, offset in before.items()}
        topics = ", ".join(dict.fromkeys(partition.topic for partition in before))
        self._ask(lambda: self._admin.delete_records(starts), needs=("Delete", "topic", topics))

    def set_password(self, user: str, password: str) -> None:
        """Let a user sign in by SCRAM-SHA-512, with this password."""
        made = [UserScramCredentialUpsertion(user, "SCRAM-SHA-512", password)]
        self._ask(partial(self._admin.alter_user_scram_credentials, made))

    def close(self) -> None:
        """Close the connections."""
        with self._admin._net.ends():  # noqa: SLF001
            self._admin.close()

    def _create(self, name: str, description: Mapping[str, object]) -> bool:
        """Create a topic; return False if it exists."""
        answer = self._ask(
            lambda: self._admin.create_topics({name: description}),
            needs=("Create", "topic", name),
            ignore=(kafka_errors.TopicAlreadyExistsError,),
        )
        return answer is not None

    def _topics(self, topics: Sequence[str]) -> dict[str, Any]:
        if not topics:
            return {}
        unknown = kafka_errors.UnknownTopicOrPartitionError.errno
        existing = {}
        for topic in self._ask(lambda: self._admin.describe_topics(list(topics))):
            if topic["error_code"] == 0:
                existing[topic["name"]] = topic
            elif topic["error_code"] != unknown:
                error = kafka_errors.for_code(topic["error_code"])
                if issubclass(error, kafka_errors.AuthorizationError):
                    raise self._access.lacks("Describe", "topic", topic["name"])
                raise UsageError(f"Topic {topic['name']} is not usable: {error.__name__}.")
        return existing

    def _placed(self, topic: str) -> tuple[int, dict[int, int]]:
        """Return the number of a topic's partitions, and the first one that each broker leads."""
        partitions = self._topics([topic]).get(topic, {"partitions": []})["partitions"]
        return len(partitions), first_led(partitions)

    def _settings(self, kind: Any, names: list[str]) -> dict[str, dict[str, str]]:
        return self._ask(lambda: self._describe(kind, names, None)) if names else {}

    def _describe(self, kind: Any, names: list[str], node: int | None) -> dict[str, dict[str, str]]:
        """Request settings; the package's own call drops the errors in the answer."""
        request = self._admin._describe_configs_request(  # noqa: SLF001
            [ConfigResource(kind, name) for name in names]
        )
        manager = self._manager
        settings = {}
        for resource in manager.run(manager.send, request, node).results:
            error = kafka_errors.for_code(resource.error_code)
            if error is kafka_errors.TopicAuthorizationFailedError:
                raise self._access.lacks("DescribeConfigs", "topic", resource.resource_name)
            if error is kafka_errors.ClusterAuthorizationFailedError:
                raise self._access.lacks("DescribeConfigs", CLUSTER)
            settings[resource.resource_name] = {
                entry.name: str(entry.value) for entry in resource.configs
            }
        return settings

    def _each_broker(self, call: Callable[[int], Any], needs: tuple[str, ...]) -> dict[int, Any]:
        """Call for one broker after the other; leave out those that do not answer in time."""
        answers = {}
        for broker in sorted(self.members()[1]):
            try:
                answer = self._ask(
                    partial(call, broker),
                    needs=needs,
                    ignore=(kafka_errors.UnknownBrokerIdError,),
                    timeout_s=min(_SILENT_BROKER_S, self._timeout_s),
                )
            except ClusterUnreachable:
                continue  # the broker died, and the cluster has not noticed yet
            if answer is not None:
                answers[broker] = answer
        if not answers:
            raise self._unreachable(None)
        return answers

    def _wait_for_leaders(self, partitions: Mapping[str, int]) -> None:
        def ready() -> bool:
            held = self.holders(list(partitions))
            led = {name: [each[1] >= 0 for each in held.get(name, [])] for name in partitions}
            return all(all(led[name]) and len(led[name]) >= partitions[name] for name in led)

        self._wait(ready, f"leaders of {', '.join(partitions)}")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"The brokers at {self._bootstrap} did not report {what} within "
                    f"{self._timeout_s:g} s; see whether all brokers run."
                )
            _pause.wait(_RETRY_S)

    def _ask(
        self,
        call: Callable[[], Any],
        *,
        needs: tuple[str, ...] = (),
        ignore: tuple[type[Exception], ...] = (),
        timeout_s: float | None = None,
    ) -> Any:
        """Repeat a call until it succeeds, fails for good or runs out of time; wait for quotas.

        The package's own waits have no limit, so each call runs on its own thread. `needs`: the
        right that it takes and its resource, named if missing. An error in `ignore` returns None.
        """
        began = time.monotonic()
        deadline = began + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            attempt = called(call, max(0.1, deadline - time.monotonic()))
            if not attempt.done():
                raise self._unreachable(None)
            error = attempt.exception()
            if error is None:
                return attempt.result()
            if isinstance(error, ignore):
                return None
            passing = isinstance(error, OSError | kafka_errors.UnknownBrokerIdError) or (
                isinstance(error, kafka_errors.KafkaError) and error.retriable
            )
            if isinstance(error, AmcastError):
                raise error
            # The package asks the broker for ever that it once took for the controller.
            self._admin._controller_id = None  # noqa: SLF001
            if isinstance(error, kafka_errors.AuthorizationError) and needs:
                raise self._access.lacks(*needs) from error
            if not passing:
                raise self._refused(error) from error
            throttled_s = self._manager.throttled_s()
            if throttled_s and time.monotonic() + throttled_s < began + _THROTTLED_S_MAX:
                deadline += throttled_s
                _LOG.warning("a quota of the brokers holds requests back for %.1f s", throttled_s)
                _pause.wait(throttled_s)
            elif time.monotonic() > deadline:
                raise self._unreachable(error) from error
            _pause.wait(_RETRY_S)

    @property
    def _manager(self) -> ConnectionManager:
        manager: ConnectionManager = self._admin._manager  # noqa: SLF001
        return manager

    def _refused(self, error: BaseException) -> BaseException:
        if isinstance(error, kafka_errors.AuthorizationError):
            return NotAuthorized(
                f"The brokers at {self._bootstrap} deny {self._access.user} a right: {error}"
            )
        if isinstance(error, kafka_errors.KafkaError):
            name = type(error).__name__.removesuffix("Error")
            told = _BROKERS_WORDS.search(str(error))
            says = f"refused a request ({name}): {told[1] if told else error}"
            return AmcastError(f"The brokers at {self._bootstrap} {says}")
        if isinstance(error, RuntimeError):
            return UsageError("This Admin is closed; open another one.")
        return error

    def _unreachable(self, why: BaseException | None) -> AmcastError:
        if hasattr(self, "_admin"):
            return self._manager.unreachable(self._timeout_s, why)
        reason = f" ({why})" if why is not None and str(why) else ""
        return ClusterUnreachable(
            f"No broker at {self._bootstrap} answered within {self._timeout_s:g} s{reason}."
        )
