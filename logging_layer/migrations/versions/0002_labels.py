"""What is known to be right or wrong, and which bars were in force."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables `labels` and `cache_policies`."""
    op.create_table(
        "labels",
        sa.Column("call", sa.String, primary_key=True),
        sa.Column("source", sa.String, primary_key=True),
        sa.Column("entry", sa.String),
        sa.Column("similarity", sa.Double),
        sa.Column("is_correct", sa.Boolean),
        sa.Column("inputs", sa.String),
        sa.Column("note", sa.String),
        sa.Column("labelled_at", sa.Double, nullable=False),
    )
    op.create_index("labels_labelled_at", "labels", ["labelled_at"])
    op.create_table(
        "cache_policies",
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("policy", sa.String, nullable=False),
        sa.Column("threshold", sa.Double, nullable=False),
        sa.Column("wrong_to_call_cost", sa.Double, nullable=False),
        sa.Column("applied_by", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("applied_at", sa.Double, nullable=False),
    )
