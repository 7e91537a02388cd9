"""The command ``elastic-launch``: options and their meaning, messages and the failure report."""
