"""Handles a consumer's messages in threads, processes or tasks, those of a key in their order.

schedule.py decides what may be handled, and committed; work.py is what all kinds of workers share;
workers.py has threads and processes, `multicast.aio.workers` the tasks.
"""
