"""`lamina bench cache`: its options. What measuring needs is imported when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def cache(  # noqa: PLR0913 - every option is a parameter
    pairs: Annotated[Path | None, typer.Option(help="Rows {a, b, same_answer}; by default the shipped ones.")] = None,
    part: Annotated[
        str, typer.Option(help="Of the shipped pairs: held_out, or dev, on which all was made.")
    ] = "held_out",
    streams: Annotated[bool, typer.Option("--streams", help="Measure request streams instead of pairs.")] = False,
    conversations: Annotated[
        bool, typer.Option("--conversations", help="Measure conversations that end in the same words.")
    ] = False,
    eviction: Annotated[
        bool, typer.Option("--eviction", help="Measure what a full cache keeps, over the same streams.")
    ] = False,
    requests: Annotated[int, typer.Option(min=100, help="Of each stream.")] = 4000,
    seed: Annotated[int, typer.Option(help="Of the streams.")] = 0,
    encoder: Annotated[Path | None, typer.Option(help="Folder of an exported encoder instead of ours.")] = None,
    kept_in: Annotated[Path, typer.Option(help="Where vectors are kept between runs.")] = Path(".lamina/bench"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every figure there.")] = None,
) -> None:
    """Measure what the semantic cache serves, rightly and wrongly, beside the cosine alone and other libraries' rules.

    Pairs: the share served of those with one answer, at bars that let 1, 2, 5 and 10 % of the traps pass; and at each
    rule's shipped bar. Streams: hits and wrong answers per request, the bar chosen on the first half, the second
    half counted. All rules see the same vectors, ours; none sees a label or a category.
    """
    from lab.bench.cache.embedding import EncoderMissing
    from lab.bench.cache.pairs import UnreadablePairs
    from lab.bench.cache.report import measure_evictions, measure_pairs, measure_streams, measure_twins, show

    try:
        if eviction:
            report = measure_evictions(encoder, kept_in=kept_in, num_requests=requests, seed=seed)
        elif conversations:
            report = measure_twins(encoder, kept_in=kept_in)
        elif streams:
            report = measure_streams(encoder, kept_in=kept_in, num_requests=requests, seed=seed)
        else:
            report = measure_pairs(pairs, part=part, encoder=encoder, kept_in=kept_in)
    except (UnreadablePairs, EncoderMissing, OSError) as exc:
        typer.echo(f"lamina bench cache: {exc}", err=True)
        raise typer.Exit(1) from exc
    show(report)
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
