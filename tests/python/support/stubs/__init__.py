"""Programs that tests start, and plug-ins that they install."""
