"""`ops report`: a run's output as one HTML page that needs nothing else."""
