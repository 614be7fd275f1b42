"""Tests of the planning of chains."""
