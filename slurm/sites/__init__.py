"""What a cluster has and allows."""
