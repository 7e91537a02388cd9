"""Start distributed PyTorch jobs and keep them alive."""
