"""The process that owns encoder and index: `python -m cache.owner --socket PATH --model FOLDER --redis URL`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np
import uvloop
from numpy.typing import NDArray

from cache.batcher import Batcher
from cache.compiled import ExportFailed, ensure_compiled
from cache.embedding_cache import EmbeddingCache
from cache.embedding_slots import EmbeddingSlots
from cache.encoder import Encoder, Tokens
from cache.owner_methods import OwnerMethods
from cache.owner_options import OwnerOptions, parse
from cache.partitions import Partitions
from cache.pgvector_index import SESSION, PgvectorIndex
from cache.postgres import Postgres
from cache.shared_index import SharedIndex
from cache.vector_store import VectorStore
from orchestration.core.lifeline import follow_supervisor, report
from orchestration.core.memory import settle_memory
from orchestration.core.process_log import start_log
from orchestration.core.rpc import RpcServer

logger = logging.getLogger(__name__)

_DRAIN_S = 2.0


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
    index = _open_index(options, encoder)
    thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")

    async def run(batch: Sequence[Tokens]) -> Sequence[NDArray[np.float32]]:
        return list(await asyncio.get_running_loop().run_in_executor(thread, encoder.encode, batch))

    batcher: Batcher[Tokens, NDArray[np.float32]] = Batcher(run, limits=options.limits)
    slots = EmbeddingSlots(
        options.redis, revision=encoder.revision, dim=encoder.dim, max_bytes=options.max_embedding_bytes
    )
    embeddings = EmbeddingCache(max_bytes=options.max_embedding_bytes, shared=slots)
    server = RpcServer(OwnerMethods(encoder, batcher, index, embeddings=embeddings).by_name())
    try:
        report("progress", what="load the index", done=0, total=1)
        await index.start()
        batcher.start()
        slots.start()
        await server.start(options.socket)
        settle_memory()
        report("ready", dim=encoder.dim, revision=encoder.revision, rows=index.numbers()["rows"])
        await stop.wait()
    finally:
        await server.aclose()
        await embeddings.aclose()
        await batcher.aclose()
        await slots.aclose()
        await index.aclose()
        thread.shutdown()


def _open_index(options: OwnerOptions, encoder: Encoder) -> SharedIndex | PgvectorIndex:
    """Return the index that the options ask for; nothing is asked of a server yet."""
    if options.postgres is not None:
        return PgvectorIndex(
            Postgres(options.postgres, session=SESSION),
            revision=encoder.revision,
            dim=encoder.dim,
            approximate_above=options.index_limits.approximate_above,
        )
    vectors = VectorStore(
        options.redis, revision=encoder.revision, dim=encoder.dim, owner=f"{os.getpid()}-{os.urandom(8).hex()}"
    )
    partitions = Partitions(encoder.dim, max_rows=options.max_rows, limits=options.index_limits)
    snapshot = options.state / "index.npz" if options.state is not None else None
    return SharedIndex(partitions, vectors, snapshot=snapshot)


def main() -> None:
    """Serve; a model that cannot be exported ends the process with one line and status 1."""
    options = parse(sys.argv[1:])
    start_log(logging.INFO, is_json=options.log_json)
    follow_supervisor()
    faiss.omp_set_num_threads(1)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options))
    except ExportFailed as exc:
        logger.error("owner.export_failed: %s", exc)
        sys.exit(1)


if __name__ == "__main__":
    main()
