"""Requests as coding agents make them, two turns each, and what upstreams answer: written by us, in their shapes."""

from __future__ import annotations

from typing import Any

CLAUDE_HEADERS = {
    "x-app": "cli",
    "user-agent": "claude-cli/2.0.0 (external, cli)",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true",
}
_EPHEMERAL = {"type": "ephemeral"}
_CLAUDE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 32000,
    "temperature": 1,
    "system": [
        {"type": "text", "text": "You are a coding agent.", "cache_control": _EPHEMERAL},
        {"type": "text", "text": "The working folder is /repo.", "cache_control": {**_EPHEMERAL, "ttl": "1h"}},
    ],
    "tools": [
        {
            "name": "Bash",
            "description": "Run a command",
            "input_schema": {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
                "required": ["command"],
                "additionalProperties": False,
            },
        },
        {"name": "Read", "input_schema": {"type": "object"}, "cache_control": _EPHEMERAL},
    ],
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "metadata": {"user_id": "user_0_account__session_1"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}
_FIRST = {
    "role": "user",
    "content": [
        {"type": "text", "text": "<system-reminder>Today is a day.</system-reminder>"},
        {"type": "text", "text": "List the files.", "cache_control": _EPHEMERAL},
    ],
}
CLAUDE_FIRST: dict[str, Any] = {**_CLAUDE, "messages": [_FIRST]}
CLAUDE_SECOND: dict[str, Any] = {
    **_CLAUDE,
    "messages": [
        _FIRST,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I list them.", "signature": "c2ln"},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "a.py"}],
                    "is_error": False,
                    "cache_control": _EPHEMERAL,
                }
            ],
        },
    ],
}

_CODEX: dict[str, Any] = {
    "model": "tiny",
    "instructions": "You are a coding agent.",
    "tools": [
        {
            "type": "function",
            "name": "update_plan",
            "description": "Keep the plan",
            "strict": False,
            "parameters": {"type": "object", "properties": {"plan": {"type": "array", "items": {"type": "string"}}}},
        },
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edit files by a patch.",
            "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
        },
        {"type": "local_shell"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-conversation",
    "text": {"verbosity": "low"},
}
_CODEX_ASKS = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Rename a.py."}]},
]
CODEX_FIRST: dict[str, Any] = {**_CODEX, "input": _CODEX_ASKS}
CODEX_SECOND: dict[str, Any] = {
    **_CODEX,
    "input": [
        *_CODEX_ASKS,
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAAA=="},
        {
            "type": "local_shell_call",
            "call_id": "call_1",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"], "timeout_ms": 1000, "env": None},
        },
        {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.py","metadata":{"exit_code":0}}'},
        {
            "type": "custom_tool_call",
            "call_id": "call_2",
            "status": "completed",
            "name": "apply_patch",
            "input": "*** Begin Patch",
        },
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done"},
    ],
}
PATCH = '*** Begin Patch\n*** Update File: a.py\n+print("é")\n*** End Patch'
