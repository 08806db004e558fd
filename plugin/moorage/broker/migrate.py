"""Brings a database to this version's schema, or refuses it. Migrations run at open, under the writer's lock."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from moorage import __version__
from moorage.api.errors import Conflict


def upgrade(engine: Engine) -> None:
    """Run the missing migrations in one transaction.

    Raises:
        Conflict: the database was written by a newer version; both are named and nothing is touched.
    """
    with engine.begin() as connection:
        config = _config(connection)
        _refuse_newer(connection, ScriptDirectory.from_config(config))
        command.upgrade(config, "head")


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _refuse_newer(connection: Connection, scripts: ScriptDirectory) -> None:
    found = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if found is not None and found not in known:
        raise Conflict(
            f"the database has schema {found}, and moorage {__version__} knows up to {scripts.get_current_head()}: "
            "start a newer moorage, or restore a copy of the database from before the upgrade"
        )
