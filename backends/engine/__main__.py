"""Run the engine as a process of its own: `python -m backends.engine --listen unix:///P --model PATH --name NAME`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from backends.engine.attn.kv_store import KV_DTYPES
from backends.engine.config import EngineConfig, doubts, size_pool
from backends.engine.core import EngineCore
from backends.engine.csrc.build import KernelsUnavailable, load_kernels
from backends.engine.csrc.check import check_kernels
from backends.engine.journal import Journal
from backends.engine.loop import EngineLoop
from backends.engine.memory import free_bytes, page_bytes, pool_bytes
from backends.engine.model.loader import DTYPES, LoadedModel, choose_device, load
from backends.engine.model.quant import QUANTIZATIONS
from backends.engine.model.weights import ModelUnreadable
from backends.engine.process_log import start_log
from backends.engine.runner.runner import Runner
from backends.engine.sched.admission import ADMISSIONS
from backends.engine.sched.queue import POLICIES
from backends.engine.server import EngineServer
from backends.engine.status import follow_supervisor, report

logger = logging.getLogger(__name__)

_STEP_TOKENS_CPU = 128
_STEP_TOKENS_GPU = 2048
_STEP_TOKENS_PER_SEQ = 4
"""Room beside a row of each answer: with 2 a burst of 64 prompts took 4 to 35 % more CPU time (median 22)."""
_COMPILED = Path("~/.cache/lamina/compiled")


def main() -> int:
    """Serve until SIGTERM or the end of stdin; returns the exit status."""
    args = read_arguments(sys.argv[1:])
    start_log(is_json=args.log_json)
    follow_supervisor()
    torch.set_num_threads(args.threads or len(os.sched_getaffinity(0)))
    try:
        device = choose_device(args.device)
        model = load(args.model, dtype=args.dtype, device=device, progress=_progress, quantization=args.quantization)
    except ModelUnreadable as exc:
        logger.error("engine: %s", exc)
        return 2
    config = _configure(args, model)
    info = _describe(args, model, config)
    for doubt in doubts(
        config, pool_bytes=config.num_pages * _page_bytes(args, model), free_bytes=free_bytes(model.device)
    ):
        _warn(doubt)
    kernels = _prepare_kernels(args, model)
    runner = Runner(
        model,
        num_pages=config.num_pages,
        page_size=config.page_size,
        num_swap_pages=config.num_swap_pages,
        kernels=kernels,
        kv_dtype=_kv_dtype(args, model),
    )
    journal = Journal()
    del model  # the kernels have packed its matrices anew; the plain ones would stay in memory beside them
    core = EngineCore(config, journal.watch(runner), new_seed=lambda: secrets.randbits(63), overlap=args.overlap)
    return asyncio.run(_serve(args, core, journal, info))


def _prepare_kernels(args: argparse.Namespace, model: LoadedModel) -> bool:
    """Make the CPU kernels ready; returns False, saying why once, where plain torch must do."""
    if args.kernels == "reference" or model.device.type != "cpu":
        return False
    try:
        load_kernels(args.compiled.expanduser(), progress=_progress)
        check_kernels(model.shape, model.dtype, args.quantization, _kv_dtype(args, model))
    except KernelsUnavailable as exc:
        _warn(f"no CPU kernels, plain torch is used and is several times slower: {exc}")
        return False
    return True


async def _serve(args: argparse.Namespace, core: EngineCore, journal: Journal, info: Mapping[str, object]) -> int:
    server = EngineServer(info)
    loop, ended, crashed = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def crash() -> None:
        loop.call_soon_threadsafe(crashed.set)
        loop.call_soon_threadsafe(ended.set)

    engine = EngineLoop(core, deliver=server.deliver, crashed=crash, journal=journal)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    engine.start()
    try:
        address = await server.start(args.listen, engine)
        report("ready", address=address, **info)
        await ended.wait()
    except (OSError, ValueError) as exc:
        logger.error("engine: %s", exc)
        return 2
    finally:
        await server.aclose()
        await asyncio.to_thread(engine.close)
    return 1 if crashed.is_set() else 0


def _progress(what: str, done: int, total: int) -> None:
    report("progress", what=what, done=done, total=total)


def _warn(message: str) -> None:
    """Say it in the log, and where the one who started us looks."""
    logger.warning("engine: %s", message)
    report("warning", message=message)


def _configure(args: argparse.Namespace, model: LoadedModel) -> EngineConfig:
    shape = model.shape
    bytes_per_page = _page_bytes(args, model)
    memory_bytes = pool_bytes(model.device) if args.kv_memory_mb is None else args.kv_memory_mb << 20
    step_tokens = _STEP_TOKENS_CPU if model.device.type == "cpu" else _STEP_TOKENS_GPU
    return EngineConfig(
        vocab_size=shape.vocab_size,
        max_len=shape.max_len,
        eos_ids=shape.eos_ids,
        num_pages=size_pool(
            memory_bytes=memory_bytes,
            page_bytes=bytes_per_page,
            page_size=args.page_size,
            max_len=shape.max_len,
            max_num_seqs=args.max_num_seqs,
        ),
        page_size=args.page_size,
        max_num_seqs=args.max_num_seqs,
        max_batch_size=args.max_batch_size,
        max_batched_tokens=args.max_batched_tokens or max(step_tokens, _STEP_TOKENS_PER_SEQ * args.max_num_seqs),
        max_waiting=args.max_waiting,
        max_waiting_tokens=args.max_waiting_tokens,
        policy=args.policy,
        admission=args.admission,
        prefill_share=args.prefill_share,
        chunk_share=args.chunk_share,
        priority_age_s=args.priority_age_s,
        max_overtakes=args.max_overtakes,
        prefix_cache=not args.no_prefix_cache,
        num_swap_pages=(args.swap_memory_mb << 20) // bytes_per_page,
    )


def _page_bytes(args: argparse.Namespace, model: LoadedModel) -> int:
    return page_bytes(model.shape, page_size=args.page_size, kv_dtype=_kv_dtype(args, model))


def _kv_dtype(args: argparse.Namespace, model: LoadedModel) -> torch.dtype:
    return KV_DTYPES.get(args.kv_dtype, model.dtype)


def _describe(args: argparse.Namespace, model: LoadedModel, config: EngineConfig) -> dict[str, object]:
    return {
        "name": args.name,
        "revision": model.revision,
        "vocab_size": config.vocab_size,
        "max_len": config.max_len,
        "eos_ids": sorted(config.eos_ids),
        "dtype": args.dtype,
        "quantization": args.quantization,
        "kv_dtype": args.dtype if args.kv_dtype == "auto" else args.kv_dtype,
        "device": str(model.device),
        "page_size": config.page_size,
        "num_pages": config.num_pages,
        "max_num_seqs": config.max_num_seqs,
    }


def _auto_or_positive(text: str) -> int | None:
    return None if text == "auto" else _positive(text)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command line's values; ends the process with a message that names a wrong one."""
    parser = argparse.ArgumentParser(prog="python -m backends.engine", description="Serve one model by token ids.")
    parser.add_argument("--listen", required=True, help="unix:///path or tcp://host:port")
    parser.add_argument("--model", required=True, type=Path, help="a GGUF file, or a folder with safetensors")
    parser.add_argument("--name", required=True, help="what the model is called")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(DTYPES))
    parser.add_argument("--quantization", default="none", choices=QUANTIZATIONS, help="of weights (default: none)")
    parser.add_argument("--kv-dtype", default="auto", choices=("auto", *sorted(KV_DTYPES)), help="auto: as --dtype")
    parser.add_argument("--page-size", default=16, type=_positive, help="tokens per KV page (default: 16)")
    parser.add_argument("--kv-memory-mb", default=None, type=_auto_or_positive, help="KV pool in MiB, or auto")
    parser.add_argument("--max-num-seqs", default=64, type=_positive, help="requests that hold KV (default: 64)")
    parser.add_argument("--max-batch-size", default=None, type=_auto_or_positive, help="of them per step, or auto: all")
    parser.add_argument(
        "--swap-memory-mb", default=0, type=_not_negative, help="MiB for KV of those who give way (default: 0, none)"
    )
    parser.add_argument("--overlap", action="store_true", help="plan a step while the one before is computed")
    parser.add_argument("--max-batched-tokens", default=None, type=_auto_or_positive, help="tokens per step, or auto")
    parser.add_argument("--policy", default="fcfs", choices=sorted(POLICIES), help="whose turn it is (default: fcfs)")
    parser.add_argument("--admission", default="future_peak", choices=sorted(ADMISSIONS))
    parser.add_argument("--no-prefix-cache", action="store_true", help="compute every prompt from its first token")
    parser.add_argument("--max-waiting", default=1024, type=_positive, help="requests that may wait (default: 1024)")
    parser.add_argument("--max-waiting-tokens", default=None, type=_auto_or_positive, help="of them all, or auto: any")
    _add_shares(parser)
    parser.add_argument("--threads", default=None, type=_positive, help="CPU threads (default: all cores)")
    parser.add_argument("--kernels", default="auto", choices=("auto", "reference"), help="on the CPU (default: auto)")
    parser.add_argument("--compiled", default=_COMPILED, type=Path, help="where compiled kernels are kept")
    parser.add_argument("--log-json", action="store_true", help="write the engine's own log as JSON lines")
    return parser.parse_args(arguments)


def _add_shares(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefill-share", default=0.75, type=_share, help="of a step's tokens for prompts while answers run"
    )
    parser.add_argument(
        "--chunk-share", default=0.75, type=_share, help="of a step's tokens for one of several prompts"
    )
    parser.add_argument(
        "--priority-age-s", default=10.0, type=_seconds, help="seconds of waiting that make up for a level of priority"
    )
    parser.add_argument(
        "--max-overtakes", default=32, type=_not_negative, help="how often a request that does not fit may be passed"
    )


if __name__ == "__main__":
    sys.exit(main())
