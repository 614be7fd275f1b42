"""The ordering service: Hyperledger Fabric's orderer on top of `multicast`."""
