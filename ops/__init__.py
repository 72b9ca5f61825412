"""What an operator uses: run, preflight, status, verify, export, launch, and the embedded parts."""
