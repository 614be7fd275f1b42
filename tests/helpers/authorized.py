"""A broker that asks who somebody is, and what he may: Kafka's own authorizer, users by password.

Its plain listener belongs to the operator of the tests, who may do everything; users sign in at
the other one. Each user that `user` gives is a new one: no right of an earlier test is left.
"""

from contextlib import ExitStack, contextmanager

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
