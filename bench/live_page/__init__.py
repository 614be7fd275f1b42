"""The live page in a real browser: its screenshots, and its frame times with a large plan."""
