"""How much of each corpus is used, and what is held out?"""
