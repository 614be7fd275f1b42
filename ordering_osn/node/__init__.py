"""One node of the ordering service: its chains, its clients' envelopes, its peers."""
