"""Random faults on a cluster that trains, and what is left of it."""
