"""What every scene uses: processes, figures and reports."""
