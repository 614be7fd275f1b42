"""Our own gRPC service, `amcast.osn.MultiChain`: bundles, and what became of them."""
