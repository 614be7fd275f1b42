"""A clerk: makes random transfers from the accounts of one branch, and prints each.

python examples/accounts/clerk.py --bootstrap HOST:PORT --topic accounts --branch P1 --transfers 20
"""

from __future__ import annotations

import argparse
import random
import sys

from accounts import ACCOUNTS, BranchBalances, Clerk

from amcast import AmcastError, Consumer, Producer


def main() -> None:
    """Run the clerk."""
    parser = argparse.ArgumentParser(description="Random transfers from the accounts of a branch")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--branch", required=True, help="accounts, separated by commas")
    parser.add_argument("--transfers", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    branch = options.branch.split(",")
    rng = random.Random(options.seed)  # noqa: S311 -- a simulation
    cluster = {"bootstrap": options.bootstrap, "topic": options.topic}
    try:
        with (
            Producer(**cluster) as producer,
            # The balances are in memory, so the clerk reads all transfers when it starts.
            Consumer(**cluster, interest=branch, committed=False) as consumer,
        ):
            balances = BranchBalances(consumer, branch)
            balances.apply(consumer.until_end())
            clerk = Clerk(producer, balances)
            for _ in range(options.transfers):
                source = rng.choice(branch)
                target = rng.choice([account for account in ACCOUNTS if account != source])
                amount = rng.randint(1, 60)
                result = "done" if clerk.transfer(source, target, amount) else "refused"
                sys.stdout.write(f"{result}: {amount} from {source} to {target}\n")
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
