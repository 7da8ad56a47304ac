"""How is text read? Documents from files and datasets, and corpus tables."""
