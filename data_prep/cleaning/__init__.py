"""What is removed from a document, or with it, and why."""
