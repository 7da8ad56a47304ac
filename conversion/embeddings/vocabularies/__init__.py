"""Which tokens does the target have, and which of them does the source have too?"""
