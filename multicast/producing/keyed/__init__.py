"""Keyed routing: a message goes to the partition where an application's partitioner puts its key.

partitioners.py     what Kafka's clients compute from a key; the keys of a destination set
calls.py            what a call of a producer names, checked
destinations.py     which log of a plan stores a message
router.py           from keys to the partitions of the plan in force
routes.py           the route of a destination set
"""
