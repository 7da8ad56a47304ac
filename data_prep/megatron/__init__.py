"""How are tokens stored in the files that Megatron reads?"""
