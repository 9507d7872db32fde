"""One file per wire format: its body becomes a `Request`, the events become its answer, whole or as a stream."""

from gateway.dialects.answer import Answer
from gateway.dialects.anthropic_messages import AnthropicMessages
from gateway.dialects.dialect import Dialect, Reply, StreamEncoder
from gateway.dialects.openai_chat import OpenAIChat
from gateway.dialects.openai_completions import OpenAICompletions
from gateway.dialects.openai_embeddings import OpenAIEmbeddings
from gateway.dialects.openai_responses import OpenAIResponses
from gateway.dialects.rerank import Rerank

__all__ = [
    "Answer",
    "AnthropicMessages",
    "Dialect",
    "OpenAIChat",
    "OpenAICompletions",
    "OpenAIEmbeddings",
    "OpenAIResponses",
    "Reply",
    "Rerank",
    "StreamEncoder",
]
