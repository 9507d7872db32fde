"""Every attribute name that our spans carry, in one place: the conventions change, and MLflow reads its own.

`gen_ai.*`, `error.type`, `session.id` and `user.id` are OpenTelemetry's; `mlflow.*` are read by MLflow's server;
there is no convention for a gateway's cache and checks, so those are ours, under `lamina.*`.
"""

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
REQUEST_STREAM = "gen_ai.request.stream"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
ERROR_TYPE = "error.type"
SESSION = "session.id"
USER = "user.id"

REQUEST_FIELDS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
"""The sampling fields of a request, by their OpenAI names."""

OPERATIONS = {"chat": "chat", "completion": "text_completion", "embedding": "embeddings", "rerank": "rerank"}
"""The operation's name by our kind of call."""

MLFLOW = "mlflow."
MLFLOW_SPAN_TYPE = "mlflow.spanType"
MLFLOW_COST = "mlflow.llm.cost"
MLFLOW_TAG = "mlflow.traceTag."

CALL = "lamina.call"
TRACE = "lamina.trace"
SAMPLE_WEIGHT = "lamina.sample_weight"
OUTCOME = "lamina.outcome"
LAYER = "lamina.layer"
CACHE = "lamina.cache."
CHECK = "lamina.check."
ENGINE = "lamina.engine."
