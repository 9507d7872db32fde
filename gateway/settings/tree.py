"""The tree of settings with its defaults: every key that the file may hold, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from orchestration.core import Secret
from orchestration.core.balance import Strategy

LANGUAGE_MODEL = "smollm2-135m-instruct"
EMBEDDING_MODEL = "all-minilm-l6-v2"
DEFAULT_LAYERS = (
    "call_log",
    "limits",
    "input_checks",
    "exact_cache",
    "semantic_cache",
    "output_checks",
    "router",
)


def _as_secret(value: Any) -> Any:
    return Secret(str(value)) if isinstance(value, str | int) else value


def _auto_as_none(value: Any) -> Any:
    return None if value == "auto" else value


SecretText = Annotated[Secret, BeforeValidator(_as_secret)]
AutoCount = Annotated[PositiveInt | None, BeforeValidator(_auto_as_none)]
"""A count, or `auto`, which is held as None."""
Port = Annotated[int, Field(ge=0, le=65535)]
Cosine = Annotated[float, Field(ge=-1.0, le=1.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Price = Annotated[float, Field(ge=0.0)]
LayerEntry = str | dict[str, dict[str, Any] | None]
"""A name, a stranger's `module:Class`, or `{module:Class: {option: value}}`."""


class Section(BaseModel):
    """A part of the file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True)


class ServerSettings(Section):
    """Where and how HTTP is served; `allowed_hosts` adds to the names under which the server may be addressed."""

    host: str = "127.0.0.1"
    port: Port = 4000
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    max_body_mb: PositiveFloat = 20
    stream_commit_s: PositiveFloat = 10
    drain_s: PositiveFloat = 30
    allowed_hosts: tuple[str, ...] = ()
    log_format: Literal["text", "json"] = "text"

    @property
    def is_loopback(self) -> bool:
        """Tell whether only this machine can reach the server."""
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")


class TimeoutSettings(Section):
    """How long one backend may take, in seconds: to connect, to the first content, in all.

    Without `first_token` a server elsewhere has 60 s, and the engine as long as it moves: who waits in its queue waits
    for a turn, and of that queue only the length is bounded.
    """

    connect: PositiveFloat = 5
    first_token: PositiveFloat | None = None
    total: PositiveFloat = 600


class PriceSettings(Section):
    """US dollars per million tokens."""

    input_per_1m: Price = 0
    cached_input_per_1m: Price | None = None
    output_per_1m: Price = 0


class BackendSettings(Section):
    """One place that answers a model's calls; which keys count depends on `type`.

    `provider` names the server behind `openai_compatible` (`openai`, `vllm`, `sglang`, `tgi`, `llama_cpp`, `ollama`,
    `nim`, `tei`, `jina`, `cohere`): its usual address and its differences from OpenAI. What it does not take is a 400
    that names the field, or left out with `drop_params`.
    `weight` counts with every strategy but round_robin and cost; without a `price` the model's counts.
    """

    type: str
    base_url: str | None = None
    provider: str | None = None
    drop_params: bool = False
    model: str | None = None
    api_key: SecretText | None = None
    weight: PositiveFloat = 1
    timeout_s: TimeoutSettings = TimeoutSettings()
    price: PriceSettings | None = None


class HedgeSettings(Section):
    """A second try at another backend while the first gives no content: after `after_ms`, or after the `quantile` of
    the times to first content so far; at most `max_share` of the calls are tried twice.
    """

    after_ms: PositiveFloat | None = None
    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95
    max_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05


class ChoiceSettings(Section):
    """Choose a model by the request. `cache_scope` says whose cached answers count: the alias' own, or the model's."""

    by: Literal["complexity"]
    small: str
    medium: str
    large: str
    cache_scope: Literal["alias", "model"] = "alias"

    @property
    def models(self) -> tuple[str, str, str]:
        """List the models by size."""
        return self.small, self.medium, self.large


class RoutingSettings(Section):
    """How often backends are asked for their health where another one could stand in; null: never."""

    health_interval_s: Annotated[float, Field(ge=1.0)] | None = 15


class ModelSettings(Section):
    """A model as clients name it, and the backends that answer for it.

    `max_tokens` is the longest answer that a call may get that does not say: limits reserve as much.
    """

    id: Annotated[str, Field(min_length=1)]
    backends: tuple[BackendSettings, ...] = ()
    strategy: Strategy = Strategy.ROUND_ROBIN
    retries: Annotated[int, Field(ge=0, le=10)] = 1
    fallbacks: tuple[str, ...] = ()
    price: PriceSettings = PriceSettings()
    max_tokens: PositiveInt = 8192
    hedge: HedgeSettings | None = None
    route: ChoiceSettings | None = None


class ExactSettings(Section):
    """The exact cache."""

    enabled: bool = True
    ttl_s: PositiveFloat = 86400


class JudgeSettings(Section):
    """A model that says off the path whether near misses would have been right: one of `models`, asked at most
    `per_minute` times by each node, about a `share` of neighbours whose cosine is `min_similarity` or more.

    Its word counts once `lamina judge check` was passed. The two questions go to its backends.
    """

    model: str
    per_minute: PositiveFloat = 30
    share: Share = 1.0
    min_similarity: Cosine = 0.8
    max_waiting: PositiveInt = 256
    timeout_s: PositiveFloat = 30


class SemanticSettings(Section):
    """The semantic cache; `threshold` is the cosine bar of the policy `static`, `model` the owner's encoder.

    `guard` lets the difference guard veto; `wrong_to_call_cost` is how many calls one wrong answer costs, from which
    the policy `calibrated` has its bar. Above `approximate_above` entries a partition has an approximate index.
    """

    enabled: bool = True
    policy: Literal["static", "calibrated", "verified"] = "static"
    threshold: Cosine = 0.95
    ttl_s: PositiveFloat = 86400
    top_k: Annotated[int, Field(ge=1, le=100)] = 5
    deadline_ms: PositiveFloat = 50
    guard: bool = True
    wrong_to_call_cost: Annotated[float, Field(ge=1, le=1_000_000)] = 25
    shadow_share: Share = 0.01
    judge: JudgeSettings | None = None
    multi_turn: Literal["strict", "relaxed"] = "strict"
    max_batch_size: PositiveInt = 32
    max_queue_delay_ms: Annotated[float, Field(ge=0)] = 2
    index: Literal["faiss", "pgvector"] = "faiss"
    pgvector_url: SecretText | None = None
    approximate_above: Annotated[int, Field(ge=256)] = 8192
    max_embedding_mb: PositiveInt = 64
    model: str = EMBEDDING_MODEL


class CacheSettings(Section):
    """Both caches, and how much they may keep together: beyond it the entries that are worth least per byte leave."""

    max_entries: PositiveInt | None = 200_000
    max_bytes: PositiveInt | None = None
    exact: ExactSettings = ExactSettings()
    semantic: SemanticSettings = SemanticSettings()


class ScopeSettings(Section):
    """For which calls a check stands: those that match every list that is there; names may hold `*` and `?`."""

    models: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    teams: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None


class CheckSettings(Section):
    """One check; keys beyond these are the check's own options.

    `on_fail` is `block`, `rewrite`, `flag` or `reask` (at most `reasks` times). One run may take `deadline_ms`; after
    `breaker_after` failures in a row the check is left alone for `breaker_open_s`, by its `fail` meanwhile.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    check: Annotated[str, Field(min_length=1)]
    on_fail: str = "block"
    mode: str | None = None
    fail: Literal["open", "closed"] = "closed"
    only_for: ScopeSettings | None = None
    reasks: Annotated[int, Field(ge=1, le=3)] = 1
    deadline_ms: PositiveFloat | None = None
    breaker_after: PositiveInt = 5
    breaker_open_s: PositiveFloat = 10


class AnswerJudgeSettings(Section):
    """A model that is asked about a `share` of the answers after they have gone out: YES to `question` is a finding."""

    name: Annotated[str, Field(min_length=1)]
    model: str
    question: Annotated[str, Field(min_length=1)]
    share: Share = 1.0
    only_for: ScopeSettings | None = None


class ValidatorSettings(Section):
    """The checks of the request and of the answer, in order, and the judges off the path."""

    input: tuple[CheckSettings, ...] = (
        CheckSettings.model_validate({"check": "length", "max_chars": 200_000, "on_fail": "block"}),
        CheckSettings.model_validate({"check": "secrets", "on_fail": "rewrite"}),
    )
    output: tuple[CheckSettings, ...] = ()
    judge: tuple[AnswerJudgeSettings, ...] = ()


class KeySettings(Section):
    """Who may call: with a master key every call carries it; `required` refuses a start without one.

    `master_file` holds the key; it is made with a random one where it is not there yet.
    """

    required: bool = False
    master: SecretText | None = None
    master_file: Path | None = None


class LimitSettings(Section):
    """One caller's limits; null is no limit."""

    rpm: PositiveInt | None = None
    tpm: PositiveInt | None = None
    parallel: PositiveInt | None = None
    budget_usd: PositiveFloat | None = None
    window: Literal["1h", "1d", "30d"] = "1d"


class LimitsSettings(Section):
    """Limits: `default` for each caller whose key says nothing else, `teams` for a team's keys together."""

    default: LimitSettings = LimitSettings()
    teams: dict[str, LimitSettings] = {}


class CollectorSettings(Section):
    """An OpenTelemetry collector that traces go to over HTTP: the whole address, and what it wants as headers."""

    url: Annotated[str, Field(pattern=r"^https?://[^/\s]+/\S*$")]
    headers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], SecretText] = {}


class LinesSettings(Section):
    """Files of JSON lines in `folder`; full ones are kept by number, `fsync` makes each batch durable."""

    folder: Path
    max_file_mb: PositiveInt = 64
    max_files: PositiveInt = 10
    fsync: bool = True


class LogSettings(Section):
    """What of each call is kept, for how long, and where it goes beside SQL and MLflow.

    `content` is `full` on loopback and `redacted` elsewhere where it is not set.
    """

    content: Literal["full", "redacted", "none"] | None = None
    sample: Share = 1.0
    retention_days: PositiveInt = 30
    otlp: tuple[CollectorSettings, ...] = ()
    jsonl: LinesSettings | None = None


class EngineSettings(Section):
    """The built-in engine; `connect` is the address of one that runs elsewhere (`tcp://host:port`)."""

    model: str = LANGUAGE_MODEL
    device: str = "auto"
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    quantization: Literal["none", "int8", "int4"] = "none"
    kv_dtype: Literal["auto", "bfloat16", "int8", "float32"] = "auto"
    page_size: PositiveInt = 16
    kv_memory_mb: AutoCount = None
    max_num_seqs: PositiveInt = 64
    max_batch_size: AutoCount = None
    max_batched_tokens: AutoCount = None
    max_waiting: PositiveInt = 1024
    max_waiting_tokens: AutoCount = None
    policy: Literal["fcfs", "longest_prefix", "fair_share"] = "fcfs"
    admission: Literal["future_peak", "reserve", "greedy"] = "future_peak"
    prefill_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.75
    chunk_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.75
    priority_age_s: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 10.0
    max_overtakes: NonNegativeInt = 32
    prefix_cache: bool = True
    swap_memory_mb: NonNegativeInt = 0
    overlap: bool = False
    threads: AutoCount = None
    kernels: Literal["auto", "reference"] = "auto"
    connect: str | None = None

    @property
    def precision(self) -> str:
        """Say what the weights are kept in and what is computed in: `bfloat16`, or `int8 over bfloat16`."""
        return self.dtype if self.quantization == "none" else f"{self.quantization} over {self.dtype}"


class RedisSettings(Section):
    """A Redis of one's own; null: a private Valkey, whose data may take `max_memory_mb`."""

    url: SecretText | None = None
    max_memory_mb: PositiveInt = 512


class DatabaseSettings(Section):
    """The SQL database as SQLAlchemy's URL; null: SQLite in the state folder."""

    url: SecretText | None = None


class MlflowSettings(Section):
    """An MLflow of one's own by `uri`, or one started here with `serve` on `port`, or the next free one."""

    uri: str | None = None
    serve: bool = False
    port: Port = 5000
    experiment: str = "lamina"


class Settings(Section):
    """The whole file."""

    server: ServerSettings = ServerSettings()
    models: tuple[ModelSettings, ...] = (
        ModelSettings(id=LANGUAGE_MODEL, backends=(BackendSettings(type="engine"),)),
        ModelSettings(id=EMBEDDING_MODEL, backends=(BackendSettings(type="embedder"),)),
    )
    routing: RoutingSettings = RoutingSettings()
    layers: tuple[LayerEntry, ...] = DEFAULT_LAYERS
    cache: CacheSettings = CacheSettings()
    validators: ValidatorSettings = ValidatorSettings()
    keys: KeySettings = KeySettings()
    limits: LimitsSettings = LimitsSettings()
    log: LogSettings = LogSettings()
    engine: EngineSettings = EngineSettings()
    redis: RedisSettings = RedisSettings()
    database: DatabaseSettings = DatabaseSettings()
    mlflow: MlflowSettings = MlflowSettings()

    @property
    def content(self) -> Literal["full", "redacted", "none"]:
        """Say how much of each call's content the log keeps."""
        return self.log.content or ("full" if self.server.is_loopback else "redacted")

    @property
    def pgvector_url(self) -> Secret | None:
        """Name the Postgres that keeps the vectors: the one that was set, or the log's; None where there is none."""
        own, log = self.cache.semantic.pgvector_url, self.database.url
        named = own or log
        return named if named is not None and named.reveal().startswith("postgresql") else None

    @property
    def uses_semantic_cache(self) -> bool:
        """Tell whether the semantic cache is on and stands in the layers."""
        return self.cache.semantic.enabled and "semantic_cache" in self.layers

    @property
    def uses_engine(self) -> bool:
        """Tell whether a model is answered by the built-in engine."""
        return any(backend.type == "engine" for model in self.models for backend in model.backends)

    @property
    def uses_embedder(self) -> bool:
        """Tell whether the cache owner has work: the semantic cache, or a model of embeddings."""
        return self.uses_semantic_cache or any(
            backend.type == "embedder" for model in self.models for backend in model.backends
        )
