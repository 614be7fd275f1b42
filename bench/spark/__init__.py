"""Streaming queries of `format("amcast")` as processes, which a campaign kills."""
