"""torch's agent class, and what it adds to an agent: timers of workers and a health check.

Agents for its subclasses and for rendezvous handlers of other distributions.
"""
