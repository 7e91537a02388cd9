"""Agents for subclasses and for rendezvous handlers of other distributions."""
