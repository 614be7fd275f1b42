"""A broker that asks who somebody is, and what he may: Kafka's own authorizer, users by password.

Its plain listener belongs to the operator of the tests, who may do everything; users sign in at
the other one. Each user that `user` gives is a new one: no right of an earlier test is left.

And the rights that docs/operating.md grants to each role: `RIGHTS`.
"""

import re
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    UserScramCredentialUpsertion,
)

from multicast.local.broker import free_ports
from multicast.local.cluster import LocalCluster
from tests.helpers.small import until

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"
PASSWORD = "open sesame"
SCRAM = "SCRAM-SHA-512"
_USERS = [f"u{number}" for number in range(150)]
_OPERATIONS = {operation.name.replace("_", "").lower(): operation for operation in ACLOperation}


class Authorized:
    """A running broker: where the operator connects, where users do, and users with rights."""

    def __init__(self, operator, users, admin):
        self.operator = operator
        self.users = users
        self._admin = admin
        self._names = iter(_USERS)

    def user(self, *rights):
        """Give the client settings of a new user with exactly these (right, kind, name).

        Kinds are "topic", "group" and "the cluster"; a name that ends in * is a prefix.
        """
        client = client_settings(next(self._names))
        if rights:
            self.grant(client, *rights)
        return client

    def grant(self, client, *rights):
        """Give a user rights, and wait until the broker knows."""
        name = client["sasl.username"]
        before = self._granted(name)
        self._admin.create_acls([self._acl(name, *right) for right in rights])
        until(lambda: self._granted(name) == before + len(set(rights)))

    def by_scram(self, client):
        """Give the settings with which this user signs in by SCRAM, once the broker knows him."""
        name = client["sasl.username"]
        made = UserScramCredentialUpsertion(name, SCRAM, PASSWORD)
        self._admin.alter_user_scram_credentials([made])
        until(lambda: name in str(self._admin.describe_user_scram_credentials([name])))
        return {**client, "sasl.mechanism": SCRAM}

    def _granted(self, name):
        """Count the rights that the broker knows of; the controller had them before."""
        anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
        found, _ = self._admin.describe_acls(
            ACLFilter(f"User:{name}", "*", ACLOperation.ANY, ACLPermissionType.ANY, anything)
        )
        return len(found)

    def _acl(self, user, right, kind, name):
        patterns = ACLResourcePatternType
        pattern = patterns.PREFIXED if name.endswith("*") else patterns.LITERAL
        resource = {
            "topic": (ResourceType.TOPIC, name.removesuffix("*")),
            "group": (ResourceType.GROUP, name.removesuffix("*")),
            "transactional ID": (ResourceType.TRANSACTIONAL_ID, name),
            "the cluster": (ResourceType.CLUSTER, "kafka-cluster"),
        }[kind]
        operation = _OPERATIONS[right.lower()]
        return ACL(
            f"User:{user}",
            "*",
            operation,
            ACLPermissionType.ALLOW,
            ResourcePattern(*resource, pattern),
        )


def client_settings(user, password=PASSWORD):
    """Give the settings with which a user signs in."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


@contextmanager
def authorized_broker():
    """Start one; it ends with the context."""
    plain, controller, other = free_ports(3)
    passwords = " ".join(f'user_{name}="{PASSWORD}"' for name in _USERS)
    login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {passwords};"
    listeners = {"PLAINTEXT": plain, "CONTROLLER": controller, "USERS": other}
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": ",".join(f"{one}://127.0.0.1:{port}" for one, port in listeners.items()),
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
        "listener.name.users.plain.sasl.jaas.config": login,
        f"listener.name.users.{SCRAM.lower()}.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with ExitStack() as opened:
        opened.enter_context(LocalCluster(brokers=1, port=plain, settings=settings))
        admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{plain}")
        opened.callback(admin.close)
        yield Authorized(f"127.0.0.1:{plain}", f"127.0.0.1:{other}", admin)


def table():
    """Read each role's rights (right, kind, name) out of the docs, and what role it builds on."""
    rights, parents = {}, {}
    role = None
    lines = OPERATING.read_text(encoding="utf-8").splitlines()
    for line in lines[lines.index("| role | right | on |") + 2 :]:
        if not line.startswith("|"):
            break
        head, right, on = (cell.strip() for cell in line.strip("|").split("|"))
        if head:
            role, _, parent = head.partition(": as ")
            role = re.sub(r"`([^`]*)`.*", r"\1", role)
            rights[role] = []
            parents[role] = re.sub(r"`([^`]*)`.*", r"\1", parent)
        kind = on.partition(" `")[0].removesuffix("s") if "`" in on else on
        names = re.findall(r"`([^`]*)`", on) or [""]
        rights[role] += [(right, kind, name) for name in names]
    return rights, parents


RIGHTS, PARENTS = table()


def all_of(role):
    own = RIGHTS[role]
    return [*all_of(PARENTS[role]), *own] if PARENTS[role] else own


def target(topic):
    """Name the topic that a test's copies and dead letters go to."""
    return f"{topic}-target"


def named(rights, topic, group, to=None):
    """Put a test's own names for those of the table."""

    def name(text):
        parts = re.split(r"\b([AGT])\b", text)
        own = {"A": topic, "G": group, "T": to or target(topic)}
        return "".join(own.get(part, part) for part in parts)

    return [(right, kind, name(text)) for right, kind, text in rights]


def names(text, right, topic, group="g", to=None):
    """Whether a sentence names the right, or one that it includes, and the resource."""
    text = " ".join(text.split())
    ((operation, kind, name),) = named([right], topic, group, to)
    resource = f"{kind} {name}".strip()
    resource = re.escape(resource).replace(r"\*", r"\S*")
    found = re.finditer(rf"lacks the right (\w+) on {resource} at [^(;]*(?:\(([^)]*)\))?", text)
    return any(operation in f"{one[1]} {one[2]}".split() for one in found)
