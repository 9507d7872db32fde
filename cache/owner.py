"""The process that owns encoder and index: `python -m cache.owner --socket PATH --model FOLDER --redis URL`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
from numpy.typing import NDArray

from cache.batcher import Batcher, BatchLimits
from cache.compiled import ExportFailed, ensure_compiled
from cache.encoder import Encoder, Tokens
from cache.owner_methods import OwnerMethods
from cache.partitions import Partitions
from cache.shared_index import SharedIndex
from cache.vector_store import VectorStore
from orchestration.core.lifeline import follow_supervisor, report
from orchestration.core.rpc import RpcServer

logger = logging.getLogger(__name__)

_DRAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class OwnerOptions:
    """What the command line says."""

    socket: Path
    model: Path
    name: str
    redis: str
    state: Path | None
    compiled: Path
    precision: str
    num_threads: int
    max_rows: int
    limits: BatchLimits


async def serve(options: OwnerOptions) -> None:
    """Load, report ready, and answer until SIGTERM; raises `ExportFailed` for a model that cannot be served."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = asyncio.create_task(_serve_until(stop, options))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            # Loading may be far from its end; serving looks at `stop` itself and ends by its own way.
            await asyncio.wait([serving], timeout=_DRAIN_S)
    finally:
        stopping.cancel()
        serving.cancel()
        await asyncio.wait([serving, stopping])
    if not serving.cancelled():
        serving.result()


async def _serve_until(stop: asyncio.Event, options: OwnerOptions) -> None:
    folder = await ensure_compiled(options.model, base=options.compiled, name=options.name, precision=options.precision)
    encoder = await asyncio.to_thread(Encoder, folder, num_threads=options.num_threads)
    vectors = VectorStore(
        options.redis, revision=encoder.revision, dim=encoder.dim, owner=f"{os.getpid()}-{os.urandom(8).hex()}"
    )
    snapshot = options.state / "index.npz" if options.state is not None else None
    index = SharedIndex(Partitions(encoder.dim, max_rows=options.max_rows), vectors, snapshot=snapshot)
    thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")

    async def run(batch: Sequence[Tokens]) -> Sequence[NDArray[np.float32]]:
        return list(await asyncio.get_running_loop().run_in_executor(thread, encoder.encode, batch))

    batcher: Batcher[Tokens, NDArray[np.float32]] = Batcher(run, limits=options.limits)
    server = RpcServer(OwnerMethods(encoder, batcher, index).by_name())
    try:
        report("progress", what="load the index", done=0, total=1)
        await index.start()
        batcher.start()
        await server.start(options.socket)
        report("ready", dim=encoder.dim, revision=encoder.revision, rows=index.num_rows)
        await stop.wait()
    finally:
        await server.aclose()
        await batcher.aclose()
        await index.aclose()
        await vectors.aclose()
        thread.shutdown()


def parse(arguments: Sequence[str]) -> OwnerOptions:
    """Read the command line; exits with a usage message where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m cache.owner", description=__doc__, fromfile_prefix_chars="@")
    parser.add_argument("--socket", type=Path, required=True, help="the Unix socket to answer on")
    parser.add_argument("--model", type=Path, required=True, help="a sentence-transformers folder")
    parser.add_argument("--name", default="all-minilm-l6-v2", help="the model's name in revisions and records")
    parser.add_argument("--redis", required=True, help="where vectors are kept: redis:// or unix://")
    parser.add_argument("--state", type=Path, help="where a graceful end leaves the index for the next start")
    parser.add_argument(
        "--compiled",
        type=Path,
        default=Path.home() / ".cache" / "lamina" / "compiled",
        help="where exported models are kept (%(default)s)",
    )
    parser.add_argument("--precision", choices=("int8", "fp32"), default="int8")
    parser.add_argument("--threads", type=int, default=1, help="threads of the encoder (%(default)s)")
    parser.add_argument("--max-rows", type=int, default=200_000, help="rows kept in memory (%(default)s)")
    parser.add_argument("--max-batch-size", type=int, default=32)
    parser.add_argument("--max-queue-delay-ms", type=float, default=2.0)
    parser.add_argument("--max-batch-tokens", type=int, default=128, help="padding included (%(default)s)")
    found = parser.parse_args(arguments)
    if not (found.model / "modules.json").exists():
        parser.error(f"--model: no sentence-transformers folder at {found.model}")
    if not found.redis.startswith(("redis://", "rediss://", "unix://")):
        parser.error(f"--redis: begins with redis://, rediss:// or unix://, not {found.redis.partition(':')[0]}")
    try:
        limits = BatchLimits(
            max_batch_size=found.max_batch_size,
            max_queue_delay_s=found.max_queue_delay_ms / 1000.0,
            max_batch_tokens=found.max_batch_tokens,
        )
    except ValueError as exc:
        parser.error(str(exc))
    return OwnerOptions(
        socket=found.socket,
        model=found.model,
        name=found.name,
        redis=found.redis,
        state=found.state,
        compiled=found.compiled,
        precision=found.precision,
        num_threads=found.threads,
        max_rows=found.max_rows,
        limits=limits,
    )


def main() -> None:
    """Serve; a model that cannot be exported ends the process with one line and status 1."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    options = parse(sys.argv[1:])
    follow_supervisor()
    faiss.omp_set_num_threads(1)
    try:
        asyncio.run(serve(options))
    except ExportFailed as exc:
        logger.error("owner.export_failed: %s", exc)
        sys.exit(1)


if __name__ == "__main__":
    main()
