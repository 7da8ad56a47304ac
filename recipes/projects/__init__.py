"""A piece of work in one file: what does it say, and which stages follow from it?"""
