"""What several tests need. No test imports another test."""
