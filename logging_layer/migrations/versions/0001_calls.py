"""One row for each call."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the table `calls`."""
    op.create_table(
        "calls",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("received_at", sa.Double, nullable=False),
        sa.Column("tenant", sa.String, nullable=False),
        *(sa.Column(name, sa.String) for name in ("request_id", "kind", "dialect", "requested_model", "model")),
        *(sa.Column(name, sa.String) for name in ("backend", "worker")),
        *(sa.Column(name, sa.Boolean) for name in ("is_streamed", "is_fallback", "is_degraded")),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("phase", sa.String),
        sa.Column("status", sa.Integer),
        *(sa.Column(name, sa.String) for name in ("error_code", "cache_status", "cache_entry")),
        *(sa.Column(name, sa.Double) for name in ("cache_similarity", "cache_threshold")),
        *(sa.Column(name, sa.Integer) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")),
        *(sa.Column(name, sa.Double) for name in ("cost_usd", "duration_ms", "ttft_ms", "overhead_ms")),
        *(sa.Column(name, sa.String) for name in ("user_id", "session_id", "request_hash")),
        sa.Column("record", sa.JSON, nullable=False),
    )
    op.create_index("calls_received_at", "calls", ["received_at"])
    op.create_index("calls_tenant", "calls", ["tenant", "received_at"])
