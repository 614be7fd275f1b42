"""Administration: topics, settings, and who the cluster is.

In go names and numbers; out come plain values. The answers of a young topic are waited for: what
these calls return is known to the broker that was asked.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType

from multicast.drivers.access import CLUSTER, Access
from multicast.drivers.kafka_python.admin_facts import BoundedCall, OpenTransaction, TopicSpec
from multicast.drivers.kafka_python.connection import client_of_ours, kafka_python_settings
from multicast.drivers.protocol import TopicPartition
from multicast.errors import (
    AccessDenied,
    AmcastError,
    ClusterUnreachable,
    NotAuthorized,
    TimedOut,
    UsageError,
)

_RETRY_S = 0.05
_SILENT_S = 3.0  # a broker that takes longer is as good as one that is away
_pause = threading.Event()  # never set: what is waited for can only be asked again


class Admin:
    """Calls that block at most for the time-out; an instance may be used by any thread."""

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        *,
        request_timeout_s: float = 10.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._access = Access.of(bootstrap, client or {})
        self._timeout_s = request_timeout_s
        settings = kafka_python_settings(client or {})
        try:
            self._admin = KafkaAdminClient(
                bootstrap_servers=bootstrap,
                bootstrap_timeout_ms=int(request_timeout_s * 1000),
                request_timeout_ms=int(request_timeout_s * 1000),
                reconnect_backoff_max_ms=500,
                kafka_client=client_of_ours,
                **settings,
            )
        except (kafka_errors.KafkaError, OSError) as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise UsageError(
                f"The bootstrap addresses {bootstrap} are not usable: {error}."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cluster_id(self) -> str:
        """Give the cluster's own identity."""
        return str(self._ask(self._admin.describe_cluster)["cluster_id"])

    def broker_ids(self) -> list[int]:
        """Give the brokers that are registered now, ascending."""
        cluster = self._ask(self._admin.describe_cluster)
        return sorted(broker["broker_id"] for broker in cluster["brokers"])

    def members(self) -> tuple[str, frozenset[int]]:
        """Give the cluster's identity and the brokers that are registered and not fenced."""
        cluster = self._ask(self._admin.describe_cluster)
        alive = [one["broker_id"] for one in cluster["brokers"] if not one.get("is_fenced")]
        return str(cluster["cluster_id"]), frozenset(alive)

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Give the number of Kafka partitions of those topics that exist."""
        return {name: len(one["partitions"]) for name, one in self._topics(topics).items()}

    def replications(self, topics: Sequence[str]) -> dict[str, int]:
        """Give the least number of replicas that any Kafka partition of a topic has."""
        return {
            name: min(len(partition["replica_nodes"]) for partition in one["partitions"])
            for name, one in self._topics(topics).items()
        }

    def holders(
        self, topics: Sequence[str]
    ) -> dict[str, list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]]:
        """Give of those topics that exist each partition's number, leader, replicas, in-sync ones.

        The leader is -1 where nobody leads.
        """
        return {
            name: sorted(
                (
                    int(part["partition_index"]),
                    int(part["leader_id"]),
                    tuple(part["replica_nodes"]),
                    tuple(part["isr_nodes"]),
                )
                for part in one["partitions"]
            )
            for name, one in self._topics(topics).items()
        }

    def topic_ids(self, topics: Sequence[str]) -> dict[str, uuid.UUID]:
        """Give the ids of those topics that exist: another id is another topic of that name."""
        return {name: uuid.UUID(str(one["topic_id"])) for name, one in self._topics(topics).items()}

    def create_topics(self, topics: Mapping[str, TopicSpec]) -> list[str]:
        """Make what does not exist, grow what is too small; give the names that were made.

        What exists keeps its settings and replication. Doing it twice is doing it once. After it
        every Kafka partition asked for has a leader.
        """
        existing = self.partitions(list(topics))
        missing = {name: spec for name, spec in topics.items() if name not in existing}
        made = []
        for name, spec in missing.items():
            asked = {
                "num_partitions": spec.partitions,
                "replication_factor": spec.replication,
                "configs": dict(spec.settings),
            }
            if self._make(name, asked):
                made.append(name)
            else:
                existing.update(self.partitions([name]))
        for name, count in existing.items():
            if count < topics[name].partitions:
                self.add_partitions(name, topics[name].partitions)
        self._wait_for_leaders({name: spec.partitions for name, spec in topics.items()})
        return made

    def would_make(self, name: str, spec: TopicSpec) -> tuple[int, dict[str, str]] | None:
        """Say which replication and settings a topic would get if it was made now; make nothing.

        None where it exists. Raises `AmcastError` where the brokers would not make it.
        """
        asked = {
            "num_partitions": spec.partitions,
            "replication_factor": spec.replication,
            "configs": dict(spec.settings),
        }
        found = self._ask(
            lambda: self._admin.create_topics({name: asked}, validate_only=True),
            needs=("Create", "topic", name),
            ignore=(kafka_errors.TopicAlreadyExistsError,),
        )
        if found is None:
            return None
        (topic,) = found["topics"]
        # A user who may not see the settings gets none: those that are asked for are known.
        told = topic.get("configs") or {}
        settings = {**spec.settings, **{key: str(one["value"]) for key, one in told.items()}}
        return int(topic["replication_factor"]), settings

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Grow a topic to so many Kafka partitions; fewer than it has is a `UsageError`."""
        try:
            self._ask(
                lambda: self._admin.create_partitions({topic: partitions}),
                needs=("Alter", "topic", topic),
            )
        except AccessDenied:
            raise
        except AmcastError:
            # Someone else may have been quicker, or an answer was lost.
            has = self.partitions([topic]).get(topic, 0)
            if has == partitions:
                return
            if has > partitions:
                raise UsageError(
                    f"Topic {topic} has {has} partitions, more than {partitions}."
                ) from None
            raise
        self._wait_for_leaders({topic: partitions})

    def place_on_brokers(self, topic: str, settings: Mapping[str, str]) -> dict[int, int]:
        """Make a topic with one Kafka partition on each broker that runs; give them by broker.

        They are not replicated: where a broker is away, so is its Kafka partition. Of a topic that
        exists all stays, and a broker that leads none of it gets one. Doing it twice is doing it
        once; two who do it at once may place two on a broker.
        """
        _, alive = self.members()
        count, placed = self._placed(topic)
        missing = sorted(alive - placed.keys())
        if missing and count:
            asked = {"count": count + len(missing), "assignments": [[one] for one in missing]}
            try:
                self._ask(
                    lambda: self._admin.create_partitions({topic: asked}),
                    needs=("Alter", "topic", topic),
                )
            except AmcastError:
                # Someone else may have been quicker, or the broker that was asked was behind.
                if self._placed(topic)[0] <= count:
                    raise
        elif missing:
            assignments = {number: [broker] for number, broker in enumerate(missing)}
            self._make(topic, {"assignments": assignments, "configs": dict(settings)})

        def everywhere() -> bool:
            nonlocal placed
            _, placed = self._placed(topic)
            return alive <= placed.keys()

        if missing:
            self._wait(everywhere, f"{topic} on every broker")
        return placed

    def topic_settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Give all settings in force of these topics, defaults included."""
        found: dict[str, dict[str, str]] = {}

        def told() -> bool:
            nonlocal found
            found = self._settings(ConfigResourceType.TOPIC, list(topics))
            return all(found.get(name) for name in topics)

        # A broker that has not heard yet of a topic that was just made gives it no settings.
        self._wait(told, f"the settings of {', '.join(topics)}")
        return {name: found[name] for name in topics}

    def broker_settings(self) -> dict[int, dict[str, str]]:
        """Give all settings in force of every broker that answers."""
        kind = ConfigResourceType.BROKER
        found = self._each_broker(
            lambda one: self._describe(kind, [str(one)], one), ("DescribeConfigs", CLUSTER)
        )
        return {one: told[str(one)] for one, told in found.items()}

    def groups(self, prefix: str) -> list[str]:
        """List the consumer groups whose name begins so, sorted, of every broker that answers.

        Groups that this user may not describe are left out by the brokers, without a word.
        """
        found = self._each_broker(
            lambda one: self._admin.list_groups(broker_ids=[one]), ("Describe", CLUSTER)
        )
        names = {str(group["group_id"]) for told in found.values() for group in told}
        return sorted(name for name in names if name.startswith(prefix))

    def sizes(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """Give the bytes that Kafka partitions take on the disks of brokers that answer."""
        sizes: dict[TopicPartition, int] = {}
        found = self._each_broker(
            lambda one: self._admin.describe_log_dirs(list(topics), brokers=[one]),
            ("Describe", CLUSTER),
        )
        if not any(told[0]["log_dirs"] for told in found.values()):
            raise self._access.lacks("Describe", CLUSTER)
        for folder in [folder for told in found.values() for folder in told[0]["log_dirs"]]:
            for topic in folder["topics"]:
                for part in topic["partitions"]:
                    at = TopicPartition(topic["name"], part["partition_index"])
                    sizes[at] = max(sizes.get(at, 0), part["partition_size"])
        return sizes

    def controller_time_ms(self) -> tuple[int, int]:
        """Name the controller that leads, and what its clock said when it answered.

        Nothing else that Kafka answers holds a broker's clock.
        """
        needs = ("Describe", CLUSTER)
        for topic in self._ask(self._admin.describe_metadata_quorum, needs=needs)["topics"]:
            for quorum in topic["partitions"]:
                for voter in quorum["current_voters"]:
                    if voter["replica_id"] == quorum["leader_id"]:
                        return int(voter["replica_id"]), int(voter["last_caught_up_timestamp"])
        raise AmcastError(f"The brokers at {self._bootstrap} name no controller that leads.")

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[OpenTransaction]]:
        """Give the transactions that are open in Kafka partitions, by their first offset there."""
        places = [KafkaTopicPartition(*one) for one in partitions]
        found: dict[TopicPartition, list[OpenTransaction]] = {}
        for place, state in self._ask(lambda: self._admin.describe_producers(places)).items():
            here = found.setdefault(TopicPartition(place.topic, place.partition), [])
            for one in state.active_producers:
                if one.current_transaction_start_offset >= 0:
                    opened = OpenTransaction(
                        one.producer_id,
                        one.producer_epoch,
                        one.current_transaction_start_offset,
                        one.last_timestamp,
                    )
                    here.append(self._described(opened))
            here.sort(key=lambda one: one.first_offset)
        return found

    def _described(self, opened: OpenTransaction) -> OpenTransaction:
        """Add what its coordinator knows of a transaction, where we may see it."""
        try:
            listed = self._ask(
                lambda: self._admin.list_transactions(producer_id_filters=[opened.producer_id])
            )
            names = [one.transactional_id for some in listed.values() for one in some]
            if not names:
                return opened
            described = self._ask(lambda: self._admin.describe_transactions(names[:1]))[names[0]]
        except AmcastError:
            return opened
        return replace(
            opened,
            transactional_id=names[0],
            since_ms=described.transaction_start_time_ms,
            timeout_ms=described.transaction_timeout_ms,
        )

    def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete those that exist, and wait until they are gone."""
        existing = list(self._topics(topics))
        if existing:
            self._ask(
                lambda: self._admin.delete_topics(existing),
                needs=("Delete", "topic", ", ".join(existing)),
                ignore=(kafka_errors.UnknownTopicOrPartitionError,),
            )
        self._wait(lambda: not self._topics(existing), f"topics {existing} to be deleted")

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Raise the beginnings of logs, as retention would; what lies below is gone for good."""
        asked = {KafkaTopicPartition(*at): offset for at, offset in before.items()}
        topics = ", ".join(dict.fromkeys(at.topic for at in before))
        self._ask(lambda: self._admin.delete_records(asked), needs=("Delete", "topic", topics))

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def _make(self, name: str, asked: Mapping[str, object]) -> bool:
        found = self._ask(
            lambda: self._admin.create_topics({name: asked}),
            needs=("Create", "topic", name),
            ignore=(kafka_errors.TopicAlreadyExistsError,),
        )
        return found is not None

    def _topics(self, topics: Sequence[str]) -> dict[str, Any]:
        if not topics:
            return {}
        found = self._ask(lambda: self._admin.describe_topics(list(topics)))
        unknown = kafka_errors.UnknownTopicOrPartitionError.errno
        existing = {}
        for one in found:
            if one["error_code"] == 0:
                existing[one["name"]] = one
            elif one["error_code"] != unknown:
                error = kafka_errors.for_code(one["error_code"])
                if issubclass(error, kafka_errors.AuthorizationError):
                    raise self._access.lacks("Describe", "topic", one["name"])
                raise UsageError(f"Topic {one['name']}: {error.__name__}.")
        return existing

    def _placed(self, topic: str) -> tuple[int, dict[int, int]]:
        """Count a topic's Kafka partitions, and give the first one that each broker leads."""
        found = self._topics([topic]).get(topic, {"partitions": []})["partitions"]
        placed: dict[int, int] = {}
        for one in sorted(found, key=lambda one: int(one["partition_index"])):
            if one["leader_id"] >= 0:
                placed.setdefault(one["leader_id"], one["partition_index"])
        return len(found), placed

    def _settings(self, kind: Any, names: list[str]) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        return dict(self._ask(lambda: self._describe(kind, names, None)))

    def _describe(self, kind: Any, names: list[str], node: int | None) -> dict[str, dict[str, str]]:
        """Ask for settings; the package's own call drops the errors in the answer."""
        request = self._admin._describe_configs_request(  # noqa: SLF001
            [ConfigResource(kind, name) for name in names]
        )
        manager = self._admin._manager  # noqa: SLF001
        found = {}
        for told in manager.run(manager.send, request, node).results:
            error = kafka_errors.for_code(told.error_code)
            if error is kafka_errors.TopicAuthorizationFailedError:
                raise self._access.lacks("DescribeConfigs", "topic", told.resource_name)
            if error is kafka_errors.ClusterAuthorizationFailedError:
                raise self._access.lacks("DescribeConfigs", CLUSTER)
            found[told.resource_name] = {one.name: str(one.value) for one in told.configs}
        return found

    def _each_broker(self, call: Callable[[int], Any], needs: tuple[str, ...]) -> dict[int, Any]:
        """Call for one broker after the other; those that do not answer soon are left out."""
        found = {}
        for broker in sorted(self.members()[1]):
            try:
                told = self._ask(
                    partial(call, broker),
                    needs=needs,
                    ignore=(kafka_errors.UnknownBrokerIdError,),
                    timeout_s=min(_SILENT_S, self._timeout_s),
                )
            except ClusterUnreachable:
                continue  # it died, and the cluster has not noticed yet
            if told is not None:
                found[broker] = told
        if not found:
            raise self._unreachable(None)
        return found

    def _wait_for_leaders(self, partitions: Mapping[str, int]) -> None:
        def ready() -> bool:
            found = self._topics(list(partitions))
            return all(
                name in found
                and len(found[name]["partitions"]) >= count
                and all(one["leader_id"] >= 0 for one in found[name]["partitions"])
                for name, count in partitions.items()
            )

        self._wait(ready, f"leaders of {', '.join(partitions)}")

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise TimedOut(f"Waited {self._timeout_s:g} s for {what}.")
            _pause.wait(_RETRY_S)

    def _ask(
        self,
        call: Callable[[], Any],
        *,
        needs: tuple[str, ...] = (),
        ignore: tuple[type[Exception], ...] = (),
        timeout_s: float | None = None,
    ) -> Any:
        """Call until it is answered; the package's own waits have no end, so a thread waits.

        `needs` is the right that the call takes, and on what: it is named where it is lacking.
        """
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while True:
            outcome = BoundedCall(call)
            if not outcome.wait(max(0.1, deadline - time.monotonic())):
                raise self._unreachable(None)
            error = outcome.error
            if error is None:
                return outcome.value
            if isinstance(error, ignore):
                return None
            passing = isinstance(error, OSError) or (
                isinstance(error, kafka_errors.KafkaError) and error.retriable
            )
            if isinstance(error, AmcastError):
                raise error
            if isinstance(error, kafka_errors.AuthorizationError) and needs:
                raise self._access.lacks(*needs) from error
            if not passing:
                raise self._refused(error) from error
            if time.monotonic() > deadline:
                raise self._unreachable(error) from error
            _pause.wait(_RETRY_S)

    def _refused(self, error: BaseException) -> BaseException:
        if isinstance(error, kafka_errors.AuthorizationError):
            return NotAuthorized(f"The brokers at {self._bootstrap} deny this: {error}")
        if isinstance(error, kafka_errors.KafkaError):
            name = type(error).__name__.removesuffix("Error")
            return AmcastError(f"The brokers at {self._bootstrap} refused ({name}): {error}")
        if isinstance(error, RuntimeError):
            return UsageError("This was closed before.")
        return error

    def _unreachable(self, why: BaseException | None) -> AmcastError:
        admin = getattr(self, "_admin", None)
        refusal = None if admin is None else admin._manager.refusal  # noqa: SLF001
        if isinstance(refusal, AccessDenied):
            return type(refusal)(str(refusal))
        reason = f" ({why})" if why is not None and str(why) else ""
        return ClusterUnreachable(
            f"No broker at {self._bootstrap} answered within {self._timeout_s:g} s{reason}."
        )
