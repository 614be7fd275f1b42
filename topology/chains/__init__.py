"""Chains of blocks: an operator's file of chains."""
