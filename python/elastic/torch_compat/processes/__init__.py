"""Worker processes without an agent: ``start_processes`` and its contexts."""
