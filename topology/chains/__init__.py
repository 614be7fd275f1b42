"""Chains of blocks: an operator's file of chains, and which work each kind of transaction makes."""
