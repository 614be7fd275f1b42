"""What clients reach: gRPC, and operations over HTTP."""
