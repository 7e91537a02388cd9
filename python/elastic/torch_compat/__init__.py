"""Classes and functions with the names of torch elastic.

Programs import them under torch's module names, ``elastic.events`` for
``torch.distributed.elastic.events``: ``elastic._aliases`` has the table.
"""
