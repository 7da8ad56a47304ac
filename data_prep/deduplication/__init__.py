"""Which paragraphs and documents repeat what was kept before."""
