"""Copies what a consumer delivers into an ordinary topic, once each (docs/materialize.md)."""
