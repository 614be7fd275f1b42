"""A peer's Endorser service, as far as clients need one before they broadcast.

Fabric's SDKs send a transaction in two parts: a proposal to peers, then what the peers signed to
the ordering service. This one signs every proposal with the key of a real peer of Org1, and answers
`cscc.GetConfigBlock` (the Java SDK asks for the roots of trust before it believes a signature) with
the block it was given. The response's payload is the transaction's ID.
"""

from concurrent import futures
from pathlib import Path

import grpc
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from fabric_protos.common.common_pb2 import ChannelHeader, Header
from fabric_protos.msp.identities_pb2 import SerializedIdentity
from fabric_protos.peer.chaincode_pb2 import ChaincodeID, ChaincodeInvocationSpec
from fabric_protos.peer.peer_pb2_grpc import EndorserServicer, add_EndorserServicer_to_server
from fabric_protos.peer.proposal_pb2 import ChaincodeAction, ChaincodeProposalPayload, Proposal
from fabric_protos.peer.proposal_response_pb2 import (
    Endorsement,
    ProposalResponse,
    ProposalResponsePayload,
    Response,
)

PEER = Path("peerOrganizations/org1.example.com/peers/peer0.org1.example.com/msp")


def digest(data):
    hashing = hashes.Hash(hashes.SHA256())
    hashing.update(data)
    return hashing.finalize()


class Endorser(EndorserServicer):
    """Signs what it is asked to; `with Endorser(...) as address` serves it on loopback."""

    def __init__(self, crypto, config_block):
        self.config_block = config_block
        certificate = next((crypto / PEER / "signcerts").iterdir()).read_bytes()
        self.key = load_pem_private_key((crypto / PEER / "keystore/priv_sk").read_bytes(), None)
        self.identity = SerializedIdentity(mspid="Org1MSP", id_bytes=certificate)

    def __enter__(self):
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        add_EndorserServicer_to_server(self, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        return f"127.0.0.1:{port}"

    def __exit__(self, *_):
        self.server.stop(None).wait()

    def ProcessProposal(self, request, context):  # noqa: N802, ARG002 - gRPC's names
        proposal = Proposal.FromString(request.proposal_bytes)
        channel_header = Header.FromString(proposal.header).channel_header
        asked = ChaincodeProposalPayload.FromString(proposal.payload).input
        chaincode = ChaincodeInvocationSpec.FromString(asked).chaincode_spec.chaincode_id.name
        answer = self.config_block
        if chaincode != "cscc":
            answer = ChannelHeader.FromString(channel_header).tx_id.encode()
        response = Response(status=200, payload=answer)
        action = ChaincodeAction(response=response, chaincode_id=ChaincodeID(name=chaincode))
        payload = ProposalResponsePayload(
            proposal_hash=digest(request.proposal_bytes), extension=action.SerializeToString()
        ).SerializeToString()
        creator = self.identity.SerializeToString()
        signature = self.key.sign(payload + creator, ec.ECDSA(hashes.SHA256()))
        return ProposalResponse(
            version=1,
            response=response,
            payload=payload,
            endorsement=Endorsement(endorser=creator, signature=signature),
        )
