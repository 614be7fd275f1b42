"""The interfaces of a node: gRPC for clients, HTTP for operations."""
