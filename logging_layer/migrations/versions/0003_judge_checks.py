"""What judges made of labelled pairs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table `judge_checks`."""
    op.create_table(
        "judge_checks",
        sa.Column("fingerprint", sa.String, primary_key=True),
        sa.Column("model", sa.String, nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("num_pairs", "num_right", "num_traps")),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("num_fooled", "num_failed")),
        sa.Column("checked_at", sa.Double, nullable=False),
    )
