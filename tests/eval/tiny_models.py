"""Tiny tokenizers and models for evaluation: random weights, a vocabulary learned from a few sentences, nothing downloaded."""

from collections.abc import Sequence

SENTENCES = (
    "Zjutraj je nad dolino ležala megla.",
    "Žena, ki je šla čez cesto, je kupila češnje.",
    "In the morning a thick fog lay over the valley.",
    "The old farmer looked at the sky and waited for rain.",
)
# Sharp enough that a token more or less of context changes every figure; transformers' own 0.02 leaves all near uniform.
SPREAD = 0.3


def tiny_tokenizer(*, in_front: str | None = None, vocab_size: int = 320, texts: Sequence[str] = SENTENCES * 3):
    """Byte-level BPE with `<s> </s> <pad> <unk>` as ids 0 to 3, which puts `in_front` before a text when asked for special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    specials = ["<s>", "</s>", "<pad>", "<unk>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    if in_front is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{in_front} $A", special_tokens=[(in_front, specials.index(in_front))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def tiny_opt(*, vocab_size: int = 320, num_positions: int = 64, hidden_size: int = 32, seed: int = 0):
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(seed)
    config = OPTConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        word_embed_proj_dim=hidden_size,
        ffn_dim=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=num_positions,
        dropout=0.0,
        init_std=SPREAD,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=2,
    )
    return OPTForCausalLM(config).eval()


def tiny_llama(*, vocab_size: int = 320, num_positions: int = 64, hidden_size: int = 32, seed: int = 0):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=num_positions,
        initializer_range=SPREAD,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def tiny_gemma3(*, vocab_size: int = 320, num_positions: int = 64, hidden_size: int = 32, seed: int = 0):
    """Two layers with a window and one without, each kind with its own rotations."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(seed)
    config = Gemma3TextConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        query_pre_attn_scalar=hidden_size // 4,
        max_position_embeddings=num_positions,
        sliding_window=16,
        sliding_window_pattern=3,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        initializer_range=SPREAD,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model = Gemma3ForCausalLM(config)
    # Its table is the head too, so that scaled embeddings would predict themselves and nothing else: a shorter last norm leaves a choice.
    torch.nn.init.constant_(model.model.norm.weight, -0.9)
    return model.eval()
