"""The ordering service: its speed, and transfers between banks whose chains it orders.

    nodes.py     brokers, plan, collectors and nodes as processes
    client.py    the clients, as processes; clients.py starts and kills them
    measure.py   the measurements; `python -m bench.osn`
    bank.py      transfers, and the balances that a bank computes from its own blocks
    judge.py     torn transfers, the order of any two chains, cycles
    money.py     whether money is conserved at every common point of the chains
    reading.py   what the ledgers of the nodes hold
    faults.py    kills them while transfers are sent
    run.py       one run: load, faults, settling, reading
    demo.py      `amcast osn demo`
    campaign.py  `amcast bench bundles`: many bundles over random sets of chains

No chaincode executes anywhere here: the service orders, and each bank reads its blocks.
"""
