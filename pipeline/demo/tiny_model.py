"""Write a tiny language model that llama.cpp serves like any other.

Enters: a path and a seed. Leaves: a GGUF file of the llama architecture with random weights, the
same bytes for the same seed. It speaks nonsense words, but everything around the words is real:
tokens, batches, caches, timings. Format: ggml docs/gguf.md.
"""

import os
import string
from itertools import product
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

WIDTH = 64
LAYERS = 2
HEADS = 4
KV_HEADS = 2
FEED_FORWARD = 128
CONTEXT = 2048  # tokens; the attention has no learned positions, so this costs no bytes
SPACE = "\u2581"  # SentencePiece writes a space as this character

_SPECIAL = ("<unk>", "<s>", "</s>")
_UNKNOWN, _BEGIN, _END = range(len(_SPECIAL))  # token ids
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))  # spell any text, in llama.cpp's names
_SYLLABLES = tuple(
    consonant + vowel for consonant, vowel in product("bcdfghjklmnpqrstvwxyz", "aeiou")
)
# SentencePiece merges the pair that stands first here: syllables, then spaces before them.
_PIECES = (
    *_SYLLABLES,
    *(SPACE + syllable for syllable in _SYLLABLES),
    *string.ascii_lowercase,
    SPACE,
    *".,?!:-",
)
_PIECES_START = len(_SPECIAL) + len(_BYTES)
VOCABULARY = _PIECES_START + len(_PIECES)  # tokens, the rows of both embedding matrices


def write_tiny_model(path: Path, *, seed: int = 7) -> Path:
    """The model file at `path` (< 1 MB), written once: an existing file is reused.

    It appears whole or not at all, so several processes may call this at once.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _describe(writer)
    _tokenizer(writer)
    for name, tensor in _tensors(np.random.default_rng(seed)).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)
    return path


def _describe(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tailrace-tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)


def _tokenizer(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*_SPECIAL, *_BYTES, *_PIECES])
    writer.add_token_scores([0.0] * _PIECES_START + [-float(rank) for rank in range(len(_PIECES))])
    writer.add_token_types(
        [gguf.TokenType.UNKNOWN]
        + [gguf.TokenType.CONTROL] * (len(_SPECIAL) - 1)
        + [gguf.TokenType.BYTE] * len(_BYTES)
        + [gguf.TokenType.NORMAL] * len(_PIECES)
    )
    writer.add_bos_token_id(_BEGIN)
    writer.add_eos_token_id(_END)
    writer.add_unk_token_id(_UNKNOWN)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)


def _tensors(rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Weights: float32, rows x columns as llama.cpp wants them (output rows first)."""

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        scale = np.float32(columns**-0.5)
        return rng.standard_normal((rows, columns), dtype=np.float32) * scale

    ones = np.ones(WIDTH, dtype=np.float32)
    output = matrix(VOCABULARY, WIDTH) * 4
    # Zero rows give a logit of 0, below the best forty: no stray byte, no early end of text.
    output[:_PIECES_START] = 0
    tensors = {
        "token_embd.weight": matrix(VOCABULARY, WIDTH) * 8,
        "output_norm.weight": ones,
        "output.weight": output,
    }
    kv_width = WIDTH // HEADS * KV_HEADS
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        tensors |= {
            f"{block}attn_norm.weight": ones,
            f"{block}attn_q.weight": matrix(WIDTH, WIDTH),
            f"{block}attn_k.weight": matrix(kv_width, WIDTH),
            f"{block}attn_v.weight": matrix(kv_width, WIDTH),
            f"{block}attn_output.weight": matrix(WIDTH, WIDTH),
            f"{block}ffn_norm.weight": ones,
            f"{block}ffn_gate.weight": matrix(FEED_FORWARD, WIDTH),
            f"{block}ffn_up.weight": matrix(FEED_FORWARD, WIDTH),
            f"{block}ffn_down.weight": matrix(WIDTH, FEED_FORWARD),
        }
    return tensors
