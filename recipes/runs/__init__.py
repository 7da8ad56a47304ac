"""What is a run while it runs and afterwards? Its directory and processes, resuming, checkpoints kept, stopping, hanging."""
