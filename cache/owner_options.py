"""The command line of the cache owner."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cache.batcher import BatchLimits
from cache.index import IndexLimits


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
    postgres: str | None
    max_rows: int
    max_embedding_bytes: int
    index_limits: IndexLimits
    limits: BatchLimits
    log_json: bool


def parse(arguments: Sequence[str]) -> OwnerOptions:
    """Read the command line; exits with a usage message where it is wrong."""
    parser = _parser()
    found = parser.parse_args(arguments)
    if not (found.model / "modules.json").exists():
        parser.error(f"--model: no sentence-transformers folder at {found.model}")
    if not found.redis.startswith(("redis://", "rediss://", "unix://")):
        parser.error(f"--redis: begins with redis://, rediss:// or unix://, not {found.redis.partition(':')[0]}")
    if found.postgres is not None and not found.postgres.startswith(("postgresql://", "postgresql+psycopg2://")):
        parser.error(f"--postgres: begins with postgresql://, not {found.postgres.partition(':')[0]}")
    try:
        limits = BatchLimits(
            max_batch_size=found.max_batch_size,
            max_queue_delay_s=found.max_queue_delay_ms / 1000.0,
            max_batch_tokens=found.max_batch_tokens,
        )
        index_limits = IndexLimits.above(found.approximate_above)
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
        postgres=found.postgres,
        max_rows=found.max_rows,
        max_embedding_bytes=found.max_embedding_mb * 1024 * 1024,
        index_limits=index_limits,
        limits=limits,
        log_json=found.log_json,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cache.owner", description="Own encoder and index.", fromfile_prefix_chars="@"
    )
    parser.add_argument("--socket", type=Path, required=True, help="the Unix socket to answer on")
    parser.add_argument("--model", type=Path, required=True, help="a sentence-transformers folder")
    parser.add_argument("--name", default="all-minilm-l6-v2", help="the model's name in revisions and records")
    parser.add_argument("--redis", required=True, help="where vectors are kept: redis:// or unix://")
    parser.add_argument("--postgres", help="keep and search vectors in this Postgres, by pgvector, instead")
    parser.add_argument("--log-json", action="store_true", help="write this process's own log as JSON lines")
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
    parser.add_argument(
        "--approximate-above", type=int, default=8_192, help="rows of a partition that has an index (%(default)s)"
    )
    parser.add_argument(
        "--max-embedding-mb", type=int, default=64, help="vectors of texts kept, in memory and in Redis (%(default)s)"
    )
    parser.add_argument("--max-batch-size", type=int, default=32)
    parser.add_argument("--max-queue-delay-ms", type=float, default=2.0)
    parser.add_argument("--max-batch-tokens", type=int, default=128, help="padding included (%(default)s)")
    return parser
