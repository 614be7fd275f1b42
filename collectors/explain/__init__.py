"""Explaining one message: where it is stored and ordered, who delivers it, who waits for what."""
