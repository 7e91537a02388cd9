"""torch's package of this name: binding of workers to the CPUs near their devices."""
