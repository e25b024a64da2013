"""A decoder's architecture as the handful of numbers that its memory follows from.

Three families cover most of what is fine-tuned on one card: Llama's (Mistral, Qwen, SmolLM, TinyLlama: RMSNorm, gated
MLP, separate projections), GPT-NeoX's (polyglot-ko: LayerNorm, one fused projection, parallel residual) and GPT-2's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
FAMILIES = (*LLAMA_LIKE, "gpt_neox", "gpt2")


@dataclass(frozen=True)
class Weight:
    """One parameter tensor: its name in a layer, its shape (rows out, columns in), and whether it is a linear layer's."""

    name: str
    shape: tuple[int, ...]
    linear: bool = False

    @property
    def size(self) -> int:
        """Number of parameters."""
        rows, columns = (*self.shape, 1)[:2]
        return rows * columns


@dataclass(frozen=True)
class Architecture:
    """The numbers of a decoder, under the letters that the formulas use.

    Attributes
    ----------
    family
        "llama", "gpt_neox" or "gpt2".
    layers, hidden, ffn, heads, kv_heads, head_dim, vocab
        L, h, f, a, g, d, V.
    tied
        Whether the output head is the embedding.
    biases
        Which projections have biases: "none", "qkv" or "all".
    qk_norm
        Whether queries and keys are normalized per head (Qwen3).
    dropout
        Of the residual stream (GPT-2's 0.1).
    rotary
        Number of dimensions of a head that are rotated.
    positions
        Learned positions (GPT-2), else 0.
    """

    family: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    biases: str = "none"
    qk_norm: bool = False
    dropout: float = 0.0
    rotary: int = 0
    positions: int = 0

    @property
    def query_width(self) -> int:
        """a d: width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """g d: width of all key heads."""
        return self.kv_heads * self.head_dim

    def layer_weights(self) -> tuple[Weight, ...]:
        """The weights of one layer."""
        h, f, q, kv = self.hidden, self.ffn, self.query_width, self.kv_width
        if self.family == "gpt_neox":
            norms = [
                Weight(f"{n}.{p}", (h,))
                for n in ("input_layernorm", "post_attention_layernorm")
                for p in ("weight", "bias")
            ]
            return (*norms, *_linear("query_key_value", 3 * q, h), *_linear("dense", h, q),
                    *_linear("dense_h_to_4h", f, h), *_linear("dense_4h_to_h", h, f))  # fmt: skip
        if self.family == "gpt2":
            norms = [Weight(f"{n}.{p}", (h,)) for n in ("ln_1", "ln_2") for p in ("weight", "bias")]
            return (*norms, *_linear("c_attn", 3 * h, h), *_linear("c_proj", h, h), *_linear("c_fc", f, h),
                    *_linear("mlp.c_proj", h, f))  # fmt: skip
        bias = self.biases == "qkv"
        qk = (
            [Weight("q_norm.weight", (self.head_dim,)), Weight("k_norm.weight", (self.head_dim,))]
            if self.qk_norm
            else []
        )
        return (
            *_linear("q_proj", q, h, bias), *_linear("k_proj", kv, h, bias), *_linear("v_proj", kv, h, bias),
            *_linear("o_proj", h, q, False), *qk, *_linear("gate_proj", f, h, False),
            *_linear("up_proj", f, h, False), *_linear("down_proj", h, f, False),
            Weight("input_layernorm.weight", (h,)), Weight("post_attention_layernorm.weight", (h,)),
        )  # fmt: skip

    def weights(self) -> tuple[Weight, ...]:
        """All parameter tensors, a tied head once, in the order of loading."""
        h, vocab = self.hidden, self.vocab
        before = [Weight("embedding", (vocab, h))]
        if self.positions:
            before.append(Weight("positions", (self.positions, h)))
        norm = [Weight("final_norm.weight", (h,))]
        if self.family != "llama":
            norm.append(Weight("final_norm.bias", (h,)))
        head = [] if self.tied else [Weight("head", (vocab, h))]
        return (*before, *self.layer_weights() * self.layers, *norm, *head)

    @property
    def parameters(self) -> int:
        """Number of parameters, a tied head once."""
        return sum(w.size for w in self.weights())


def architecture(config: Any) -> Architecture:
    """Read a transformers configuration.

    Raises
    ------
    ValueError
        For a family that the closed form doesn't know.

    Examples
    --------
    >>> from onegpu import models
    >>> numbers = architecture(models.config("qwen2.5-0.5b"))
    >>> numbers.layers, numbers.hidden, numbers.kv_width, numbers.parameters
    (24, 896, 128, 494032768)
    """
    kind = config.model_type
    if kind not in FAMILIES:
        raise ValueError(
            f"the closed form knows {', '.join(FAMILIES)}, not {kind}: use simulated(), which runs any decoder"
        )
    if kind == "gpt2":
        return Architecture(
            "gpt2", config.n_layer, config.n_embd, config.n_inner or 4 * config.n_embd, config.n_head, config.n_head,
            config.n_embd // config.n_head, config.vocab_size, config.tie_word_embeddings, "all",
            dropout=config.resid_pdrop, positions=config.n_positions,
        )  # fmt: skip
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    numbers = (
        config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.num_attention_heads,
        getattr(config, "num_key_value_heads", None) or config.num_attention_heads, head_dim, config.vocab_size,
        config.tie_word_embeddings,
    )  # fmt: skip
    if kind == "gpt_neox":
        part = (config.rope_parameters or {}).get("partial_rotary_factor", getattr(config, "rotary_pct", 1.0))
        return Architecture("gpt_neox", *numbers, "all", rotary=int(head_dim * part))
    biases = "qkv" if kind == "qwen2" else "none"
    return Architecture("llama", *numbers, biases, qk_norm=kind == "qwen3", rotary=head_dim)


def _linear(name: str, rows: int, columns: int, bias: bool = True) -> tuple[Weight, ...]:
    weight = Weight(f"{name}.weight", (rows, columns), linear=True)
    return (weight, Weight(f"{name}.bias", (rows,))) if bias else (weight,)
