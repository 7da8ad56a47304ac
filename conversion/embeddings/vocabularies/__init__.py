"""Which tokens has the target, and which of them has the source too?"""
