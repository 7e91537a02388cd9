"""The checks that need a GPU. ``python -m bench.gpu`` runs them."""
