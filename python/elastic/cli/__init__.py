"""The command ``elastic-launch``: options, what they mean, messages and the failure report."""
