"""A process that spools records until it is killed, and says on stdout which ones it has appended."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from logging_layer.spool import Spool
from tests.logging_layer.samples import make_record


async def main() -> None:
    spool = Spool(Path(sys.argv[1]), worker="child")
    await spool.start()
    while True:
        record = await make_record()
        spool.append(record)
        sys.stdout.write(f"{record.id} {time.monotonic()}\n")
        sys.stdout.flush()
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(main())
