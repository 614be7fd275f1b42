"""`python -m multicast.metrics` prints the table of the clients' metrics for docs/metrics.md."""

import sys

from multicast.metrics.clients import FAMILIES
from multicast.metrics.families import table

sys.stdout.write(table(FAMILIES))
