"""The auditor: reads all transfers up to now, prints the balances, and checks them.

    python examples/accounts/audit.py --bootstrap HOST:PORT --topic accounts

Exit code 1: an account was below zero at some position, or money was made or lost.
"""

from __future__ import annotations

import argparse
import json
import sys

from accounts import ACCOUNTS, START, transfers

from amcast import AmcastError, Consumer


def main() -> None:
    """Audit once."""
    parser = argparse.ArgumentParser(description="Checks all transfers up to now")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    options = parser.parse_args()
    money = dict.fromkeys(ACCOUNTS, START)
    count = 0
    lowest = START
    try:
        with Consumer(
            options.bootstrap, topic=options.topic, interest=ACCOUNTS, committed=False
        ) as consumer:
            for source, target, amount in transfers(consumer.until_end()):
                money[source] -= amount
                money[target] += amount
                count += 1
                lowest = min(lowest, *money.values())
            void = consumer.void
    except KeyboardInterrupt:
        sys.exit(130)
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    report = {"balances": money, "transfers": count, "without_effect": void, "lowest": lowest}
    sys.stdout.write(f"{json.dumps(report)}\n")
    sys.exit(0 if lowest >= 0 and sum(money.values()) == START * len(ACCOUNTS) else 1)


if __name__ == "__main__":
    main()
