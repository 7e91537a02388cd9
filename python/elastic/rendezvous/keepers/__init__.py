"""Stores that keep the record of a job, as Python reaches them: those of programs, and etcd."""
