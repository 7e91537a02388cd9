"""Modules that every scene uses: processes, figures and reports."""
