"""What one decoder layer keeps for the backward pass, tensor by tensor, with its formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from onegpu.gpu_memory.architecture import Architecture, Weight
from onegpu.gpu_memory.cuda_kernels import attention_kernel
from onegpu.gpu_memory.training_setup import DTYPE_BYTES, ResolvedSetup

DEFAULT_TARGETS = {"llama": ("q_proj", "v_proj"), "gpt_neox": ("query_key_value",), "gpt2": ("c_attn",)}
"""What peft adapts if it isn't told."""


class Form(NamedTuple):
    """A formula with its numbers, and why it is there."""

    formula: str
    reason: str


@dataclass
class Numbers:
    """An architecture and a setup as the letters of the formulas."""

    arch: Architecture
    setup: ResolvedSetup

    def __post_init__(self):
        setup = self.setup
        b = DTYPE_BYTES[setup.dtype]
        self.T, self.S = setup.tokens, setup.max_length
        self.B = setup.batch_size
        self.trains_all = not setup.adapters
        self.w = b  # of the head's weights
        # Residual stream: fp32 where the embeddings or norms are.
        own_fp16 = setup.loop == "onegpu" and setup.mixed_precision == "fp16"
        self.s = 4 if b == 4 or setup.prepare_kbit or own_fp16 else b
        # Products: 16 bits under autocast, else as the stream (4-bit layers return what they were given).
        self.c = 2 if setup.mixed_precision else self.s
        # What a 4-bit or adapted layer returns under autocast: its input's dtype.
        self.out = self.s if setup.method == "qlora" and setup.loop != "onegpu" else self.c
        self.l = self.c if setup.mixed_precision or not setup.prepare_kbit else 4
        self.embedding_is_saved = self.trains_all and (b == 4 or self.arch.family != "llama")
        self.mask_bytes = 4 if setup.gpu.is_cpu else 1  # of dropout: fp32 noise, or CUDA's booleans
        self.use_cache = setup.loop == "plain" and not setup.gradient_checkpointing

    @property
    def kernel(self) -> str:
        """Which attention kernel runs, "eager" if none."""
        if self.setup.attention == "eager":
            return "eager"
        import torch

        dtype = {
            4: torch.float32,
            2: torch.bfloat16 if "bf16" in (self.setup.dtype, self.setup.mixed_precision) else torch.float16,
        }
        grouped = self.arch.heads != self.arch.kv_heads
        return attention_kernel(
            self.setup.gpu, dtype[self.c], self.arch.head_dim, masked=False, grouped=grouped
        )


def lora_targets(arch: Architecture, setup: ResolvedSetup) -> tuple[Weight, ...]:
    """The linear layers of one decoder layer that get an adapter.

    Raises
    ------
    ValueError
        If a target is none of them.
    """
    if not setup.adapters:
        return ()
    linear = [w for w in arch.layer_weights() if w.linear]
    wanted = setup.target_modules or DEFAULT_TARGETS[arch.family]
    if wanted == "all-linear":
        return tuple(linear)
    wanted = (wanted,) if isinstance(wanted, str) else wanted
    names = [w.name.removesuffix(".weight").rsplit(".", 1)[-1] for w in linear]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise ValueError(
            f"target_modules names {unknown}, expected some of {sorted(set(names))}, or 'all-linear'"
        )
    return tuple(w for w, name in zip(linear, names, strict=True) if name in wanted)


def saved_by_layer(n: Numbers, targets: tuple[Weight, ...], keeps, *, first: bool):
    """Yield (category, sizes, form) of what a layer keeps for its backward pass."""
    arch, T, h = n.arch, n.T, n.arch.hidden
    names = {w.name.removesuffix(".weight") for w in targets}
    frozen_start = first and not n.trains_all and not n.setup.gradient_checkpointing
    groups = _groups(arch)
    # Norms, and their outputs as inputs of the layers behind them.
    parallel = arch.family == "gpt_neox"
    per_norm = _norm_sizes(n)
    count = 2 - (0 if not frozen_start else 2 if parallel else 1)
    if count:
        yield "activations", per_norm * count, Form(
            f"2 x {sum(per_norm):,}", "each norm's input" + (" in fp32" if arch.family == "llama" and n.s == 2 else ""))  # fmt: skip
    if n.trains_all:
        inputs = []
        for _, layers in groups[:2]:
            copies = len(layers) if n.setup.mixed_precision and n.s == 4 else 1
            inputs += [n.c * T * h] * copies
        yield (
            "activations",
            inputs,
            Form(
                f"{len(inputs)} c T h, c = {n.c}", "the norms' outputs, which the linear layers' weights need"
            ),
        )
    yield from _lora(n, groups, names)
    yield from _attention(n, keeps, keeps_output=n.trains_all or bool(names & {"o_proj", "dense", "c_proj"}))
    if not (frozen_start and parallel):  # nothing before a first parallel MLP is trained
        yield from _mlp(n, names)


def _groups(arch: Architecture):
    """Which layers share an input: (width of it, names)."""
    if arch.family == "gpt_neox":
        return [
            ("h", ("query_key_value",)),
            ("h", ("dense_h_to_4h",)),
            ("q", ("dense",)),
            ("f", ("dense_4h_to_h",)),
        ]
    if arch.family == "gpt2":
        return [("h", ("c_attn",)), ("h", ("c_fc",)), ("q", ("c_proj",)), ("f", ("mlp.c_proj",))]
    return [
        ("h", ("q_proj", "k_proj", "v_proj")),
        ("h", ("gate_proj", "up_proj")),
        ("q", ("o_proj",)),
        ("f", ("down_proj",)),
    ]


def _norm_sizes(n: Numbers) -> list[int]:
    size = n.T * n.arch.hidden
    if n.arch.family == "llama":
        sizes = [4 * size, 4 * n.T]  # fp32, whatever comes in
        return [*sizes, *([n.s * size] if n.trains_all else [])]
    if n.arch.family == "gpt_neox":  # both norms of a parallel layer have one input
        return [n.s * size // 2, 4 * n.T, 4 * n.T]
    return [n.s * size, 4 * n.T, 4 * n.T]


def _lora(n: Numbers, groups, names):
    """Inputs that adapters keep: peft's copies, dropout masks, and the low-rank products."""
    setup, T = n.setup, n.T
    widths = {"h": n.arch.hidden, "q": n.arch.query_width, "f": n.arch.ffn}
    lora = DTYPE_BYTES[setup.lora_dtype]
    sizes: list[int] = []
    for letter, layers in groups:
        adapted = [name for name in layers if name in names]
        if not adapted:
            continue
        width = widths[letter]
        after_norm = 4 if setup.loop == "onegpu" else n.s  # our own trainer keeps norms in fp32
        arrives = n.c if letter in "qf" else after_norm
        if setup.loop == "onegpu" and setup.method == "qlora":
            each, shared = (0, n.c) if arrives == n.c else (n.c, 0)
        elif setup.mixed_precision:
            each, shared = (n.c, 0) if setup.method != "qlora" or arrives != n.c else (0, n.c)
        else:
            each, shared = (lora, 0) if arrives != lora else (0, lora)
        if setup.lora_dropout:
            each, shared = (n.mask_bytes + (n.c if setup.mixed_precision else lora)), 0
        if each:
            sizes += [each * T * width] * len(adapted)
        elif letter != "q" or (setup.loop == "onegpu" and n.kernel != "math"):
            # Attention keeps its output anyway, but packed rows are a copy of its parts.
            sizes.append(shared * T * width)
        sizes += [(n.c if setup.mixed_precision else lora) * T * setup.lora_r] * len(adapted)
    if sizes:
        yield (
            "lora",
            sizes,
            Form(
                f"{sum(sizes):,}",
                "inputs of the adapters (peft copies them to the adapters' dtype) and their low-rank products",
            ),
        )


def _attention(n: Numbers, keeps, *, keeps_output: bool):
    """What attention keeps. Fused kernels need their output; others only as the input of a trained layer behind."""
    arch, T, S, B, c = n.arch, n.T, n.S, n.B, n.c
    q, kv, a = arch.query_width, arch.kv_width, arch.heads
    kernel = n.kernel
    cached, form = keeps.cache(n)
    if n.use_cache:
        yield "kv_cache", cached, form
    if arch.qk_norm:
        size = [4 * T * q, 4 * T * kv] + ([n.s * T * q, n.s * T * kv] if n.trains_all else [])
        yield "activations", size, Form("(4 + s) T (a + g) d", "the norms of queries and keys")
    if kernel in ("flash", "efficient", "cpu"):
        fused = 3 if arch.family == "gpt2" else 1  # GPT-2's queries are a view of the whole projection
        sizes = [fused * c * T * q, c * T * q, 4 * B * a * (-(-S // 32) * 32 if kernel == "efficient" else S)]
        sizes += [] if n.use_cache else [c * T * kv, c * T * kv]
        yield "activations", sizes, Form(
            f"2 c T a d + 4 B a S{'' if n.use_cache else ' + 2 c T g d'}", f"queries and output of the {kernel} attention kernel, and one sum a row")  # fmt: skip
        return
    scores = B * a * S * S
    if kernel == "math":
        sizes = [4 * T * q, 4 * T * q, 4 * T * q, 4 * scores, *([c * T * q] if keeps_output else [])]
        yield (
            "activations",
            sizes,
            Form(
                "4 B a S^2 + 3 x 4 T a d" + (" + c T a d" if keeps_output else ""),
                "scores in fp32: no fused kernel takes this on this card",
            ),
        )
        return
    if arch.family == "gpt2":
        sizes = [c * T * q] * ((1 if n.use_cache else 3) + keeps_output) + [c * scores]
        if arch.dropout:
            sizes += [c * scores, n.mask_bytes * scores]
        yield (
            "activations",
            sizes,
            Form(
                "(2 c + 1) B a S^2 + 2 c T a d",
                "scores after softmax and after dropout, dropout's mask, queries, output",
            ),
        )
        return
    sizes = [c * T * q] * ((3 if arch.heads != arch.kv_heads or not n.use_cache else 1) + keeps_output) + [
        4 * scores,
        *([c * scores] if c == 2 else []),
    ]
    yield (
        "activations",
        sizes,
        Form(
            f"(4 + c) B a S^2 + {3 + keeps_output} c T a d",
            "scores after softmax in fp32 and once more in 16 bits, queries, keys, values"
            + (", output" if keeps_output else ""),
        ),
    )


def _mlp(n: Numbers, names):
    arch, T, f = n.arch, n.T, n.arch.ffn
    if arch.family == "llama":
        out = n.out
        count = 3 + (1 if n.trains_all else 0)
        yield (
            "activations",
            [out * T * f] * count,
            Form(
                f"{count} c T f, c = {out}",
                "gate, its SiLU, up" + (", their product" if n.trains_all else ""),
            ),
        )
        return
    each = {"gpt_neox": [n.out], "gpt2": [n.out] * 4}[arch.family]
    if arch.family == "gpt2" and n.setup.mixed_precision and n.out == 2:
        each = [4, 4, 2, 4]  # autocast takes GELU's x ** 3 in fp32, and what is made with it is fp32
    each += [n.out] if n.trains_all else []
    yield (
        "activations",
        [bytes_of_one * T * f for bytes_of_one in each],
        Form(
            f"({' + '.join(map(str, each))}) T f"
            if len(set(each)) > 1
            else f"{len(each)} c T f, c = {n.out}",
            "what GELU needs" + (", and its output" if n.trains_all else ""),
        ),
    )
    if arch.family == "gpt2" and arch.dropout:
        yield (
            "activations",
            [n.mask_bytes * T * arch.hidden] * 2,
            Form(f"2 x {n.mask_bytes} T h", "dropout masks"),
        )


def layer_backward_bytes(n: Numbers, targets: tuple[Weight, ...]) -> tuple[int, ...]:
    """Estimate the temporaries of a layer's backward pass at their highest: gradients around the MLP."""
    size = n.T * n.arch.ffn
    return (n.out * size, n.out * size, n.s * n.T * n.arch.hidden)
