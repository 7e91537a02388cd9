"""Rendezvous modules of torch elastic beside those that ``elastic.rendezvous`` has."""
