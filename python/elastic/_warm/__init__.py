"""The template process of warm workers. It is started by path; no other module imports these."""
