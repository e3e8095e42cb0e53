"""Alembic runs this file to apply revisions, on the connection that `gpugate.store.database.upgrade` gives."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
