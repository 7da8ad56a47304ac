"""What may a recipe say? Its keys, how it is composed, and every rule between them and the inputs."""
