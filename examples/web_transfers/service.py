"""A web service that moves money between accounts on several partitions, with aiohttp.

    python examples/web_transfers/service.py --bootstrap HOST:PORT --topic web_transfers \
        --accounts P1,P2,P3

Each account is a partition. A transfer is one message to the set of its two accounts, so every
instance of the service applies all transfers in one order, and all come to the same balances; a
transfer that its account cannot pay is refused by all of them alike.

    POST /transfers   {"from": "P1", "to": "P2", "amount": 5}: answers once the transfer is ordered
                      and applied here: 200 with what became of it, 400, or 503 (try again)
    GET  /accounts    the balances, and the position in the order that they are of

Two tasks on one event loop: the web server, and the reader that applies transfers. The balances are
in memory, so an instance reads the whole order when it starts (`committed=False`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from amcast import AmcastError, Message, MessageID, UsageError
from amcast.aio import AsyncConsumer, AsyncProducer

_START = 100  # money of each account at first
_WAIT_S = 30.0  # for a transfer to be ordered and applied, before the client is told to ask again


class Balances:
    """The balances; `applied` tells who waits for a transfer what became of it."""

    def __init__(self, accounts: list[str]) -> None:
        self.balances = dict.fromkeys(accounts, _START)
        self.position = ""
        self._waiting: dict[MessageID, asyncio.Future[str]] = {}
        self._results: dict[MessageID, str] = {}

    def apply(self, message: Message) -> None:
        """Apply the next transfer of the order; a malformed message changes nothing."""
        try:
            source, target, amount = parse(json.loads(message.payload or b"null"), self.balances)
        except (ValueError, RecursionError) as error:
            result = f"ignored: {error}"
        else:
            if self.balances[source] < amount:
                result = f"refused: {source} has only {self.balances[source]}"
            else:
                self.balances[source] -= amount
                self.balances[target] += amount
                result = "done"
        self.position = str(message.cursor)
        self._results[message.message_id] = result
        waiting = self._waiting.pop(message.message_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)

    async def applied(self, message: MessageID) -> str:
        """Wait until a transfer is applied; say what became of it."""
        if message not in self._results:
            future = asyncio.get_running_loop().create_future()
            await self._waiting.setdefault(message, future)
        return self._results[message]


def parse(document: Any, accounts: dict[str, int]) -> tuple[str, str, int]:
    """Read a transfer; raises `ValueError` with one sentence for the client."""
    match document:
        case {"from": str(source), "to": str(target), "amount": int(amount)} if amount is not True:
            pass
        case _:
            raise ValueError('a transfer is {"from": ACCOUNT, "to": ACCOUNT, "amount": NUMBER}')
    unknown = [account for account in (source, target) if account not in accounts]
    if unknown or source == target or amount <= 0:
        raise ValueError("a transfer needs two different known accounts and a positive amount")
    return source, target, amount


async def transfer(request: web.Request) -> web.Response:
    """Multicast a transfer, and answer once it is applied."""
    ledger, producer = request.app[LEDGER], request.app[PRODUCER]
    try:
        document = json.loads(await request.read())
        source, target, _ = parse(document, ledger.balances)
    except (ValueError, RecursionError) as error:
        return web.json_response({"error": str(error)}, status=400)
    try:
        async with asyncio.timeout(_WAIT_S):
            receipt = await producer.multicast(json.dumps(document).encode(), to={source, target})
            message = await receipt.accepted()
            result = await ledger.applied(message)
    except UsageError as error:
        return web.json_response({"error": str(error)}, status=400)
    except (AmcastError, TimeoutError) as error:
        # After a time-out the transfer may still happen: its ID would tell. A real service has the
        # client send a number of its own, and applies each number once.
        return web.json_response({"error": str(error) or "not applied in time"}, status=503)
    return web.json_response({"message": str(message), "result": result})


async def accounts(request: web.Request) -> web.Response:
    """Give the balances."""
    ledger = request.app[LEDGER]
    return web.json_response({"balances": ledger.balances, "position": ledger.position})


PRODUCER = web.AppKey("producer", AsyncProducer)
LEDGER = web.AppKey("ledger", Balances)


def service(bootstrap: str, topic: str, names: list[str]) -> web.Application:
    """Make the application; aiohttp opens and closes its clients with it."""

    async def clients(app: web.Application) -> AsyncIterator[None]:
        async def read(consumer: AsyncConsumer) -> None:
            async for message in consumer:
                ledger.apply(message)

        async with (
            AsyncProducer(bootstrap, topic=topic) as producer,
            AsyncConsumer(bootstrap, topic=topic, interest=names, committed=False) as consumer,
        ):
            ledger = app[LEDGER] = Balances(names)
            app[PRODUCER] = producer
            reading = asyncio.create_task(read(consumer))
            reading.add_done_callback(stop_if_failed)
            yield
            reading.cancel()

    app = web.Application()
    app.cleanup_ctx.append(clients)
    app.add_routes([web.post("/transfers", transfer), web.get("/accounts", accounts)])
    return app


def stop_if_failed(reading: asyncio.Task[None]) -> None:
    """End the service when its reader fails: it would answer with old balances."""
    if not reading.cancelled() and reading.exception() is not None:
        sys.stderr.write(f"the reader failed: {reading.exception()}\n")
        raise web.GracefulExit


async def serve(app: web.Application, port: int) -> None:
    """Serve on the loopback until the process is ended; print the address."""
    runner = web.AppRunner(app, handle_signals=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            raise AmcastError(f"port {port} cannot be opened: {error}") from error
        host, bound = runner.addresses[0][:2]
        sys.stdout.write(f"http://{host}:{bound}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def main() -> None:
    """Run the service."""
    parser = argparse.ArgumentParser(description="Transfers between accounts, over HTTP")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--accounts", required=True, help="partitions, separated by commas")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    options = parser.parse_args()
    app = service(options.bootstrap, options.topic, options.accounts.split(","))
    try:
        asyncio.run(serve(app, options.port))
    except (web.GracefulExit, KeyboardInterrupt):
        return
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
