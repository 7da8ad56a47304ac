"""A pipeline's file, its stages as jobs, and what of it is done."""
