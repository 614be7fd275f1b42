"""`Client` over TLS and mutual TLS, with certificates of Fabric's tools."""

import asyncio

import pytest

from ordering_osn.client import Client, ConnectionLost, TlsFiles, TlsRefused
from ordering_osn.client.node_turns import NodeTurns
from tests.ordering_osn.helpers.bundle_nodes import A, B, C, bundle_for, quick_chains
from tests.ordering_osn.helpers.chains import (
    MUTUAL_TLS,
    ORDERER_CA,
    ORG1,
    SERVER_TLS,
    USER,
    USER_FOLDER,
    gathered,
    serving,
)
from tests.ordering_osn.helpers.pki import Certified, root
from tests.ordering_osn.helpers.small import Nodes, chains_plan

ORG1_CA = ORG1 / "tlsca/tlsca.org1.example.com-cert.pem"
PAIR = (USER_FOLDER / "tls/client.crt", USER_FOLDER / "tls/client.key")
NAME = "orderer.example.com"
READ = chains_plan(A, B, C, spanning=[(A, B)], readers=[(A, B)])
MUTUAL = pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual"])
# The client's certificate and key, the CA that it trusts, the name that it expects, the sentence.
WRONG = {
    "ca": (PAIR, ORG1_CA, NAME, "authorities of TlsFiles, --tls-ca"),
    "host name": (PAIR, ORDERER_CA, "n1.example.com", "name of the client, --tls-name"),
    "no certificate": ((), ORDERER_CA, NAME, "certificate and key of TlsFiles, --tls-cert"),
    "another certificate": (
        root("nobody knows it"),
        ORDERER_CA,
        NAME,
        "is of a CA that the node was given (--client-ca)",
    ),
    "no tls": (None, None, "", "tls of the client, --tls-ca"),
}
# A node without mutual TLS accepts these.
ONLY_MUTUAL = ("no certificate", "another certificate")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with Nodes(READ, tmp_path_factory.mktemp("tls")) as osn:
        node = osn.running("n1", *quick_chains(A, B))
        yield node


def over_tls(node, call, *, mutual=False, plain=False):
    """Serve a node over TLS, and await a call with its address."""

    async def run():
        tls = None if plain else MUTUAL_TLS if mutual else SERVER_TLS
        async with serving(node, metrics=node.metrics, tls=tls) as server:
            return await call(f"127.0.0.1:{server.port}")

    return asyncio.run(run())


def settings(case=None):
    pair, authority, name, _ = WRONG[case] if case else (PAIR, ORDERER_CA, NAME, "")
    if isinstance(pair, Certified):
        tls = TlsFiles(pair.pem, pair.key_pem, authority.read_bytes())
    else:
        tls = TlsFiles.read(*pair, authorities=[authority]) if authority else None
    return {"tls": tls, "name": name}


@pytest.mark.slow
@MUTUAL
def test_the_client_does_everything_over_tls(node, mutual):
    async def use(address):
        async with Client([address], USER, retry_s=60.0, **settings()) as client:
            made = bundle_for(A, B, signer=USER)
            assert (await client.submit(made)).accepted
            assert len((await client.wait(made.id, 60.0)).places) == 2
            assert (await client.status(made.id)).kind == "committed"
            entries = client.deliver([A, B], stop="newest", timeout_s=60.0)
            assert made.id in [entry.bundle_id async for entry in entries]

    over_tls(node, use, mutual=mutual)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutual", "case"),
    [(False, case) for case in WRONG if case not in ONLY_MUTUAL] + [(True, case) for case in WRONG],
)
def test_what_is_wrong_is_one_sentence_that_names_the_setting(node, mutual, case):
    kind = TlsRefused if case in ("ca", "host name") else ConnectionLost

    async def ask(address):
        errors = []
        for call in (
            lambda client: client.status(bytes(32)),
            lambda client: gathered(client.deliver([A, B])),
        ):
            async with Client([address], USER, retry_s=0.1, **settings(case)) as client:
                with pytest.raises(kind) as caught:
                    await call(client)
            errors.append(caught.value)
        return address, errors

    address, errors = over_tls(node, ask, mutual=mutual)
    for error in errors:
        assert str(error).startswith(f"{address}: it")
        assert WRONG[case][-1] in str(error)
        assert "\n" not in str(error)
        # Wrong settings are not tried again; a connection that was closed may come back.
        assert error.retriable == (kind is ConnectionLost)
        assert error.definite == (kind is TlsRefused)


def test_a_node_whose_certificate_is_refused_does_not_end_the_wait_for_another():
    gone, refused = ConnectionLost("it restarts"), TlsRefused("its certificate has expired")

    async def places():
        turns = NodeTurns(2, 0, retry_s=10_000.0)
        asked = [await turns.next(), await turns.next(gone), await turns.next(refused)]
        return [*asked, await turns.next(refused), await turns.next(refused)]

    assert asyncio.run(places()) == [0, 1, 0, 1, None]


@pytest.mark.slow
def test_tls_to_a_node_without_tls_is_refused_at_once(node):
    async def ask(address):
        async with Client([address], USER, retry_s=10_000.0, **settings()) as client:
            with pytest.raises(TlsRefused, match=r"does not speak TLS; .* \(tls of the client"):
                await client.submit(bundle_for(A, B, signer=USER))

    over_tls(node, ask, plain=True)
