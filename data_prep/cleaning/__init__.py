"""What is removed from documents, which documents are removed, and why?"""
