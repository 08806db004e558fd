"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _facts()
    _leases()
    _allocations()
    _ledger()
    _journal()
    _access()


def downgrade() -> None:
    raise NotImplementedError("restore a copy of the database from before the upgrade")


def _facts() -> None:
    op.create_table(
        "meta", sa.Column("key", sa.String(64), primary_key=True), sa.Column("value", sa.Text, nullable=False)
    )
    op.create_table(
        "writer",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("boot", sa.BigInteger, nullable=False),
        sa.Column("heard", sa.Float, nullable=False),
        sa.Column("at", sa.String(40), nullable=False),
    )
    op.create_table(
        "policy",
        sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at", sa.String(40), nullable=False),
        sa.Column("who", sa.String(200), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "node", sa.Column("id", sa.String(253), primary_key=True), sa.Column("body", sa.Text, nullable=False)
    )
    op.create_table(
        "code",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("at", sa.String(40), nullable=False),
        sa.Column("bytes", sa.LargeBinary, nullable=False),
    )


def _leases() -> None:
    op.create_table(
        "lease",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("team", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("submitted_at", sa.String(40), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("memo", sa.Text, nullable=False),
    )
    live = sa.text("state <> 'ended'")
    op.create_index("lease_key", "lease", ["owner", "generation"], unique=True)
    op.create_index("lease_one_live", "lease", ["owner"], unique=True, sqlite_where=live, postgresql_where=live)
    op.create_index("lease_state", "lease", ["state"])
    op.create_index("lease_submitted", "lease", ["submitted_at"])
    op.create_table(
        "label",
        sa.Column("lease", sa.String(36), sa.ForeignKey("lease.id"), primary_key=True),
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("label_name", "label", ["name", "value"])


def _allocations() -> None:
    op.create_table(
        "allocation",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("lease", sa.String(36), sa.ForeignKey("lease.id"), nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("gpus", sa.Text, nullable=False),
    )
    op.create_index("allocation_lease", "allocation", ["lease"])
    op.create_table(
        "gpu_hold",
        sa.Column("node", sa.String(253), primary_key=True),
        sa.Column("gpu", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("allocation", sa.String(64), nullable=False),
    )


def _ledger() -> None:
    op.create_table(
        "segment",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("allocation", sa.String(64), nullable=False),
        sa.Column("lease", sa.String(36), nullable=False),
        sa.Column("team", sa.String(200), nullable=False),
        sa.Column("node", sa.String(253), nullable=False),
        sa.Column("start", sa.String(40), nullable=False),
        sa.Column("end", sa.String(40)),
        sa.Column("body", sa.Text, nullable=False),
    )
    still = sa.text('"end" IS NULL')
    op.create_index("segment_lease", "segment", ["lease"])
    op.create_index(
        "segment_one_open", "segment", ["allocation"], unique=True, sqlite_where=still, postgresql_where=still
    )


def _journal() -> None:
    op.create_table(
        "journal",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("who", sa.String(200), nullable=False),
        sa.Column("lease", sa.String(36)),
        sa.Column("node", sa.String(253)),
        sa.Column("team", sa.String(200)),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
    )
    op.create_index("journal_lease", "journal", ["lease", "seq"])
    op.create_index("journal_team", "journal", ["team", "seq"])


def _access() -> None:
    op.create_table(
        "answer",
        sa.Column("who", sa.String(200), primary_key=True),
        sa.Column("client_id", sa.String(200), primary_key=True),
        sa.Column("method", sa.String(40), nullable=False),
        sa.Column("at", sa.String(40), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("answer_at", "answer", ["at"])
    op.create_table(
        "token",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("team", sa.String(200)),
        sa.Column("node", sa.String(253)),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("revoked_at", sa.String(40)),
    )
