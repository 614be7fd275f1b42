"""What a node does with clients' bundles: judges and posts them, and knows their fates."""
