"""One node: its chains, its clients' envelopes, its peers."""
