"""Which stages does a piece of work have, what does each need, what is done, and who runs the rest?"""
