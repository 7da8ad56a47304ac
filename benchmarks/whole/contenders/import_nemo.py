"""The import that a NeMo script begins with."""

from nemo.collections import llm

assert llm.pretrain
