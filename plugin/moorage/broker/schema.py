"""The tables. A body is the value as JSON (`api.codec`); other columns repeat what is searched or constrained."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

#: Facts of the database: the server's secret.
meta = Table("meta", metadata, Column("key", String(64), primary_key=True), Column("value", Text, nullable=False))

#: One row: which start of the writer owns the database, and its hearing clock. Every transaction checks `boot`.
writer = Table(
    "writer",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("boot", BigInteger, nullable=False),
    Column("heard", Float, nullable=False),
    Column("at", String(40), nullable=False),
)

lease = Table(
    "lease",
    metadata,
    Column("id", String(36), primary_key=True),
    #: Owner labels as canonical JSON, and which lease of them this is: a retry finds its lease.
    Column("owner", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("team", String(200), nullable=False),
    Column("state", String(16), nullable=False),
    Column("submitted_at", String(40), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("memo", Text, nullable=False),
    Index("lease_key", "owner", "generation", unique=True),
    Index(
        "lease_one_live",
        "owner",
        unique=True,
        sqlite_where=text("state <> 'ended'"),
        postgresql_where=text("state <> 'ended'"),
    ),
    Index("lease_state", "state"),
    Index("lease_submitted", "submitted_at"),
)

#: Owner labels, one a row, for `find`.
label = Table(
    "label",
    metadata,
    Column("lease", String(36), ForeignKey("lease.id"), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("value", Text, nullable=False),
    Index("label_name", "name", "value"),
)

allocation = Table(
    "allocation",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("lease", String(36), ForeignKey("lease.id"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("node", String(253), nullable=False),
    Column("role", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("gpus", Text, nullable=False),
    Index("allocation_lease", "lease"),
)

#: Who holds each GPU: the primary key is what makes granting one twice impossible.
gpu_hold = Table(
    "gpu_hold",
    metadata,
    Column("node", String(253), primary_key=True),
    Column("gpu", Integer, primary_key=True, autoincrement=False),
    Column("allocation", String(64), nullable=False),
)

node = Table("node", metadata, Column("id", String(253), primary_key=True), Column("body", Text, nullable=False))

#: The ledger. A closed segment never changes; an allocation has one open segment at most.
segment = Table(
    "segment",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("allocation", String(64), nullable=False),
    Column("lease", String(36), nullable=False),
    Column("team", String(200), nullable=False),
    Column("node", String(253), nullable=False),
    Column("start", String(40), nullable=False),
    Column("end", String(40)),
    Column("body", Text, nullable=False),
    Index("segment_lease", "lease"),
    Index(
        "segment_one_open",
        "allocation",
        unique=True,
        sqlite_where=text('"end" IS NULL'),
        postgresql_where=text('"end" IS NULL'),
    ),
)

journal = Table(
    "journal",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", String(40), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("who", String(200), nullable=False),
    Column("lease", String(36)),
    Column("node", String(253)),
    Column("team", String(200)),
    Column("sentence", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Index("journal_lease", "lease", "seq"),
    Index("journal_team", "team", "seq"),
)

#: First answers of calls with a client id, so that a repeated call gets the same one.
answer = Table(
    "answer",
    metadata,
    Column("who", String(200), primary_key=True),
    Column("client_id", String(200), primary_key=True),
    Column("method", String(40), nullable=False),
    Column("at", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Index("answer_at", "at"),
)

token = Table(
    "token",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("team", String(200)),
    Column("node", String(253)),
    Column("hash", String(64), nullable=False, unique=True),
    Column("created_at", String(40), nullable=False),
    Column("revoked_at", String(40)),
)

code = Table(
    "code",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("at", String(40), nullable=False),
    Column("bytes", LargeBinary, nullable=False),
)

policy = Table(
    "policy",
    metadata,
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("at", String(40), nullable=False),
    Column("who", String(200), nullable=False),
    Column("body", Text, nullable=False),
)
