"""Rendezvous modules of torch elastic: handlers, their registry, and their parameters."""
