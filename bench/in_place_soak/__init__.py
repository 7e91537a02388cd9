"""Random changes of members of a job that changes in place, and what its ranks have computed."""
