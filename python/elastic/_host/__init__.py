"""What this machine has: CPUs, accelerators and the limits of its control groups."""
