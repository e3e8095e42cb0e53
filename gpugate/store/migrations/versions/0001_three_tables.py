"""The tables run, result and metric."""

import sqlalchemy as sql
from alembic import op

revision, down_revision = "0001", None
NAME = sql.String().with_variant(sql.String(255), "mysql", "mariadb")
PROVENANCE = ("repository", "commit", "changes", "branch", "ci_url", "host", "gpu_uuid", "container")


def upgrade() -> None:
    op.create_table(
        "run",
        sql.Column("id", sql.Integer, primary_key=True),
        sql.Column("key", NAME, nullable=False, unique=True),
        sql.Column("name", NAME, nullable=False),
        sql.Column("started", sql.BigInteger, nullable=False),
        sql.Column("started_at", NAME, nullable=False),
        sql.Column("seed", sql.BigInteger, nullable=False),
        sql.Column("machine", NAME, nullable=False),
        sql.Column("interrupted", sql.Boolean, nullable=False),
        *(sql.Column(name, NAME) for name in PROVENANCE),
        sql.Column("environment", sql.Text, nullable=False),
        sql.Column("source_hashes", sql.Text, nullable=False),
    )
    op.create_index("run_of_machine", "run", ["machine", "started"])
    op.create_index("run_of_commit", "run", ["commit"])
    op.create_table(
        "result",
        sql.Column("run_id", sql.Integer, sql.ForeignKey("run.id"), primary_key=True, autoincrement=False),
        sql.Column("number", sql.SmallInteger, primary_key=True, autoincrement=False),
        sql.Column("case_id", NAME, nullable=False),
        sql.Column("outcome", NAME),
        sqlite_with_rowid=False,
    )
    op.create_index("result_of_case", "result", ["case_id", "run_id"])
    op.create_table(
        "metric",
        sql.Column("run_id", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("number", sql.SmallInteger, primary_key=True, autoincrement=False),
        sql.Column("name", sql.SmallInteger, primary_key=True, autoincrement=False),
        sql.Column("value", sql.Double, nullable=False),
        sql.Column("low", sql.Double),
        sql.Column("high", sql.Double),
        sqlite_with_rowid=False,
    )
