"""Which children the settings ask for, and the command of each."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway import model_store
from gateway.settings import Settings
from gateway.supervisor.child import ChildSpec
from gateway.supervisor.place import Place, Sockets, available_cores
from gateway.supervisor.state import StateFolder

DRAIN_MARGIN_S = 5.0


def database_url(settings: Settings, state: StateFolder) -> str:
    """Name the SQL database: the one that was set, or SQLite in the state folder."""
    url = settings.database.url
    return url.reveal() if url is not None else state.database_url


def redis_url(settings: Settings, sockets: Sockets) -> str:
    """Name the key-value store: the one that was set, or the private Valkey."""
    url = settings.redis.url
    return url.reveal() if url is not None else f"unix://{sockets.valkey}"


def models_needed(settings: Settings) -> list[str]:
    """List the models that must be on this machine before its children start."""
    wanted = [settings.engine.model] if settings.uses_engine else []
    return wanted + ([settings.cache.semantic.model] if settings.uses_embedder else [])


def fetch_spec(model: str, place: Place) -> ChildSpec:
    """Describe the child that fetches one model and ends."""
    return ChildSpec(
        name=f"fetch-{model}",
        command=place.python("gateway.model_store", model),
        environment=place.child_environment(),
        log=place.log("fetch"),
        quiet_s=120.0,
        is_restarted=False,
    )


def engine_spec(settings: Settings, place: Place, *, model: Path) -> ChildSpec:
    """Describe the built-in engine, the one child with more than one thread."""
    engine = settings.engine
    threads = engine.threads or available_cores()
    arguments = {
        "--listen": f"unix://{place.sockets.engine}",
        "--model": str(model),
        "--name": model_name(engine.model),
        "--device": engine.device,
        "--dtype": engine.dtype,
        "--quantization": engine.quantization,
        "--kv-dtype": engine.kv_dtype,
        "--page-size": str(engine.page_size),
        "--kv-memory-mb": str(engine.kv_memory_mb or "auto"),
        "--max-num-seqs": str(engine.max_num_seqs),
        "--max-batch-size": str(engine.max_batch_size or "auto"),
        "--max-batched-tokens": str(engine.max_batched_tokens or "auto"),
        "--policy": engine.policy,
        "--admission": engine.admission,
        "--max-waiting": str(engine.max_waiting),
        "--max-waiting-tokens": str(engine.max_waiting_tokens or "auto"),
        "--prefill-share": f"{engine.prefill_share:g}",
        "--chunk-share": f"{engine.chunk_share:g}",
        "--priority-age-s": f"{engine.priority_age_s:g}",
        "--max-overtakes": str(engine.max_overtakes),
        "--swap-memory-mb": str(engine.swap_memory_mb),
        "--threads": str(threads),
        "--kernels": engine.kernels,
        "--compiled": str(model_store.compiled_folder()),
    }
    words = [word for pair in arguments.items() for word in pair]
    if not engine.prefix_cache:
        words.append("--no-prefix-cache")
    if engine.overlap:
        words.append("--overlap")
    words += _log_words(settings)
    return ChildSpec(
        name="engine",
        command=place.python("backends.engine", *words),
        environment=place.child_environment(threads=threads, **_huge_pages(place.environment)),
        log=place.log("engine"),
        quiet_s=600.0,
    )


def owner_spec(settings: Settings, place: Place, *, model: Path) -> ChildSpec:
    """Describe the cache owner: the encoder and the index of the semantic cache."""
    semantic = settings.cache.semantic
    arguments = {
        "--socket": str(place.sockets.cache),
        "--model": str(model),
        "--name": model_name(semantic.model),
        "--redis": redis_url(settings, place.sockets),
        "--state": str(place.state.path / "cache"),
        "--compiled": str(model_store.compiled_folder()),
        "--max-batch-size": str(semantic.max_batch_size),
        "--max-queue-delay-ms": f"{semantic.max_queue_delay_ms:g}",
        "--approximate-above": str(semantic.approximate_above),
        "--max-embedding-mb": str(semantic.max_embedding_mb),
    }
    if settings.cache.max_entries is not None:
        arguments["--max-rows"] = str(settings.cache.max_entries)
    if semantic.index == "pgvector" and settings.pgvector_url is not None:
        arguments["--postgres"] = settings.pgvector_url.reveal()
    words = [word for pair in arguments.items() for word in pair] + _log_words(settings)
    return ChildSpec(
        name="cache-owner",
        command=place.python("cache.owner", _in_file(place, "cache-owner", words)),
        environment=place.child_environment(threads=1, **_huge_pages(place.environment)),
        log=place.log("cache-owner"),
        quiet_s=600.0,
    )


def _huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Have glibc ask for huge pages, where nothing else was said of them.

    Every text goes through all of the encoder's weights: with pages of 4 kB that takes half as long again, or more. The
    engine gains up to a tenth.
    """
    said = environment.get("GLIBC_TUNABLES")
    return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1" + (f":{said}" if said else "")}  # the later of two values counts


def _huge_pages_for_objects(environment: Mapping[str, str]) -> dict[str, str]:
    """Have Python's objects in glibc's huge pages, too, which Python's own allocator does not ask for.

    A call touches memory all over: it takes 3 to 7 % less CPU, and up to a quarter less beside busy neighbours.
    """
    if platform.libc_ver()[0] != "glibc":
        return {}
    return {**_huge_pages(environment), "PYTHONMALLOC": environment.get("PYTHONMALLOC", "malloc")}


def _log_words(settings: Settings) -> list[str]:
    """Say how a child is to write its own log."""
    return ["--log-json"] if settings.server.log_format == "json" else []


def guard_spec(checks: list[dict[str, Any]], settings: Settings, place: Place) -> ChildSpec:
    """Describe the guardrails worker with the checks that it is to run."""
    words = ["--socket", str(place.sockets.guard), "--checks", json.dumps(checks), *_log_words(settings)]
    return ChildSpec(
        name="guardrails",
        command=place.python("validators.worker", *words),
        environment=place.child_environment(),
        log=place.log("guardrails"),
    )


def shipper_spec(settings: Settings, place: Place, *, mlflow_uri: str | None) -> ChildSpec:
    """Describe the log shipper; it ends last of ours, and drains the spool before it does.

    One that an earlier, killed supervisor started may still be draining this spool: the start is tried again.
    """
    words = ["--spool", str(place.state.spool), "--database", database_url(settings, place.state)]
    words += ["--socket", str(place.sockets.shipper), "--retention-days", str(settings.log.retention_days)]
    words += _log_words(settings)
    words += ["--sample", f"{settings.log.sample:g}", "--workers", str(place.run), *_view_words(settings)]
    if mlflow_uri is not None:
        words += ["--mlflow", mlflow_uri, "--experiment", settings.mlflow.experiment]
    return ChildSpec(
        name="log-shipper",
        command=place.python("logging_layer.shipper", _in_file(place, "log-shipper", words)),
        environment=place.child_environment(),
        log=place.log("log-shipper"),
        stop_s=30.0,
        start_tries=9,
    )


def _view_words(settings: Settings) -> list[str]:
    """Name the log's other sinks; a collector's secrets go into the private file that holds the words."""
    words = []
    for collector in settings.log.otlp:
        headers = {name: secret.reveal() for name, secret in collector.headers.items()}
        words += ["--otlp", json.dumps({"url": collector.url, "headers": headers})]
    lines = settings.log.jsonl
    if lines is not None:
        words += ["--jsonl", str(lines.folder), "--jsonl-file-mb", str(lines.max_file_mb)]
        words += ["--jsonl-files", str(lines.max_files), *([] if lines.fsync else ["--jsonl-unsynced"])]
    return words


def worker_spec(settings: Settings, place: Place, *, index: int, descriptor: int) -> ChildSpec:
    """Describe one worker, which serves the listening socket that it inherits as `descriptor`."""
    words = ["--fd", str(descriptor), "--index", str(index), "--run-dir", str(place.run)]
    words += ["--config", str(place.sockets.config), "--state", str(place.state.path)]
    return ChildSpec(
        name=f"worker-{index}",
        command=place.python("gateway.worker", *words),
        environment=place.child_environment(
            threads=1,
            PROMETHEUS_MULTIPROC_DIR=str(place.sockets.metrics),
            **_huge_pages_for_objects(place.environment),
        ),
        log=place.log(f"worker-{index}"),
        pass_fds=(descriptor,),
        stop_s=settings.server.drain_s + DRAIN_MARGIN_S,
    )


def model_name(model: str) -> str:
    """Name a model for people: its id, or the last part of its path."""
    return model if model in model_store.PACKAGED else Path(model).name


def _in_file(place: Place, name: str, words: Sequence[str]) -> str:
    """Write a command's words into a private file, as URLs may hold passwords and every user can read commands."""
    path = place.run / f"{name}.args"
    path.write_text("".join(f"{word}\n" for word in words))
    return f"@{path}"
