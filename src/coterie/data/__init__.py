"""What an experiment learns from: sources give pools, partitioners assign their rows to clients."""
