"""What several test rooms share: worker processes, the command line, models, stock peers, leak checks."""
