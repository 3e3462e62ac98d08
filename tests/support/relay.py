"""Passes connections on, between a port of 127.0.0.1 and a Unix socket, which network namespaces share.

python relay.py SOCKET_PATH PORT     # what comes to the socket goes to the port
python relay.py 0 SOCKET_PATH        # what comes to a port, which it prints, goes to the socket
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def main(source: str, target: str) -> None:
    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if target.isdigit():
            there = await asyncio.open_connection("127.0.0.1", int(target))
        else:
            there = await asyncio.open_unix_connection(target)
        await asyncio.gather(pumped(reader, there[1]), pumped(there[0], writer))

    if source.isdigit():
        server: asyncio.Server = await asyncio.start_server(passed_on, "127.0.0.1", int(source))
        print(server.sockets[0].getsockname()[1], flush=True)
    else:
        server = await asyncio.start_unix_server(passed_on, source)
        print("ready", flush=True)
    await server.serve_forever()


async def pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
