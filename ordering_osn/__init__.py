"""The ordering service for blockchains, on top of `multicast`."""
