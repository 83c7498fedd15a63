"""What an experiment learns from: sources give pools, partitions deal their rows to clients."""
