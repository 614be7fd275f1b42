"""Handles a consumer's messages in threads, processes or tasks, those of a key in their order.

schedule.py decides what may be handled, and committed; workers.py carries that out.
"""
