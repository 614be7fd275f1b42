"""The wire of transactions over several chains: `multichain.proto`, and its generated stubs.

The stubs are checked in. `protoc` 29.0 made them, at the root of the repository, in an environment
of its own (`pip install grpcio-tools==1.71.2`, which is not a dependency of this project):

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. ordering_osn/wire/multichain.proto

Then the comment lines for the linters, which are the first ones of both files, were added.
`tests/ordering_osn/bundles/test_wire.py` holds the stubs to the proto file.

The core in `ordering_osn/chain/bundles/` reads with these stubs, but has encoders of its own, and
refuses what they would not write: what counts must not depend on what one version of a protobuf
library accepts. The same test holds its encoders to the stubs.
"""
