"""Which paragraphs and documents repeat text that was kept before?"""
