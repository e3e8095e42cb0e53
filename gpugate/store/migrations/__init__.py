"""The revisions of the store's tables, as alembic applies them to a store that an older gpugate made."""
