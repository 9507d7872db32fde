"""What the engine can be told in the settings is what its command line takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.engine.__main__ import read_arguments
from gateway.refusals import SettingsError
from gateway.settings import parse_settings
from gateway.settings.tree import EngineSettings
from gateway.supervisor.place import Place
from gateway.supervisor.plan import engine_spec
from gateway.supervisor.state import StateFolder

CHOSEN = """
engine: {policy: fair_share, admission: reserve, max_waiting: 7, max_waiting_tokens: 900, prefill_share: 0.5,
         chunk_share: 0.25, priority_age_s: 2.5, max_overtakes: 0, max_num_seqs: 9, page_size: 4,
         max_batch_size: 5, swap_memory_mb: 3, overlap: true, quantization: int4, kv_dtype: int8}
"""


@pytest.mark.parametrize("text", ["", CHOSEN])
def test_the_engine_is_told_every_setting_of_its_scheduler(text: str, tmp_path: Path) -> None:
    place = Place(state=StateFolder(tmp_path), run=tmp_path, environment={"PATH": "/bin"})
    settings = parse_settings(text, environment={})

    command = engine_spec(settings, place, model=Path("m")).command
    arguments = vars(read_arguments(command[command.index("backends.engine") + 1 :]))

    elsewhere = {"model", "prefix_cache", "threads", "connect"}
    for field in EngineSettings.model_fields.keys() - elsewhere:
        assert arguments[field] == getattr(settings.engine, field), field


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kv_dtype: int4", ["engine.kv_dtype", "'auto', 'bfloat16', 'int8' or 'float32'", "'int4'"]),
        ("policy: random", ["engine.policy", "'fcfs', 'longest_prefix' or 'fair_share'", "'random'"]),
        ("max_waiting: 0", ["engine.max_waiting", "0"]),
        ("max_waiting_tokens: 0", ["engine.max_waiting_tokens", "0"]),
        ("prefill_share: 0", ["engine.prefill_share", "0"]),
        ("prefill_share: 1.1", ["engine.prefill_share", "1.1"]),
        ("chunk_share: -1", ["engine.chunk_share", "-1"]),
        ("priority_age_s: -1", ["engine.priority_age_s", "-1"]),
        ("priority_age_s: .inf", ["engine.priority_age_s", "inf"]),
        ("max_overtakes: -1", ["engine.max_overtakes", "-1"]),
        ("max_batch_size: 0", ["engine.max_batch_size", "0"]),
        ("swap_memory_mb: -1", ["engine.swap_memory_mb", "-1"]),
        ("quantization: int2", ["engine.quantization", "'none', 'int8' or 'int4'", "'int2'"]),
        ("overlap: perhaps", ["engine.overlap", "'perhaps'"]),
    ],
)
def test_a_wrong_setting_of_the_scheduler_is_refused_by_name(text: str, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(f"engine: {{{text}}}", environment={})

    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    "flags",
    [("--prefill-share", "0"), ("--chunk-share", "2"), ("--priority-age-s", "inf"), ("--max-overtakes", "-1"),
     ("--policy", "random"), ("--max-waiting-tokens", "0"), ("--max-batch-size", "0"), ("--swap-memory-mb", "-1")],
)  # fmt: skip
def test_a_wrong_flag_is_refused_by_name(flags: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_arguments(["--listen", "tcp://127.0.0.1:0", "--model", "m", "--name", "n", *flags])

    assert flags[0] in capsys.readouterr().err
