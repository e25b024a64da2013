"""Memory of a training step from the architecture's numbers alone: every term with its formula and its reason.

The terms are put down in the order of a training step, layer by layer, and the allocator's rounding is replayed on
them. What a term is rests on two things that formulas elsewhere leave out: what transformers keeps alive (``Keeps``; it
changed twice between 4.40 and 5), and what the loss makes of the logits.

Letters: T tokens of a micro-batch, S of a row, L layers, h hidden, f MLP, a heads, g key heads, d of a head, V
vocabulary, P parameters, r rank, s bytes of a number in the residual stream, c in a layer's products.

Sources: activation counting after Korthikanti et al. (arXiv 2205.05198), which assumes fused kernels, a dropout and no
LoRA; QLoRA's constants from arXiv 2305.14314; the rest counted with ``simulated`` and tested against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onegpu.dtype_sizing import format_bytes
from onegpu.gpu_memory.allocator import Block, CachingAllocator, ExactAllocator
from onegpu.gpu_memory.architecture import Architecture, Weight, architecture
from onegpu.gpu_memory.breakdown import CATEGORIES, MemoryBreakdown, Moment, Peak, Term
from onegpu.gpu_memory.keeps import KEEPS, Keeps
from onegpu.gpu_memory.layer_forms import Form, Numbers, layer_backward_bytes, lora_targets, saved_by_layer
from onegpu.gpu_memory.optimizers import PAGED_FROM
from onegpu.gpu_memory.training_setup import DTYPE_BYTES, ResolvedSetup, make_setup
from onegpu.packed_training.loss import head_chunk

OUT_OF_RANGE = "may be low, out of its range"


def closed_form(
    model: Any,
    /,
    *,
    keeps: str | Keeps = "installed",
    **settings: Any,
) -> MemoryBreakdown:
    """Compute the memory of a training step from the architecture's numbers.

    Parameters
    ----------
    model, settings
        As ``TrainingSetup``; or a setup.
    keeps
        Which transformers: "installed" (5, and 4.56 the same), "4.46" (4.45 to 4.48) or "4.40" (to 4.44), the older
        ones for GPT-NeoX in a plain loop. Or a ``Keeps`` of your own.

    Returns
    -------
    MemoryBreakdown
        With ``terms``: each with its formula, the numbers put in, and the reason.

    Raises
    ------
    ValueError
        For a setup that can't be trained, or a family that the formulas don't know.

    Examples
    --------
    >>> book = closed_form(
    ...     "polyglot-ko-1.3b", method="full", loop="plain", per_device_train_batch_size=4, max_length=256,
    ...     dtype="fp16", keeps="4.40",
    ... )
    >>> round(book["after_step"].allocated_bytes / 2**30, 3)
    10.586
    >>> print(book.terms[0])
    weights: P 2 = 1,331,810,304 x 2 = 2.481 GiB (every parameter in fp16)
    """
    setup = make_setup(model, **settings).resolved
    _check_known(setup)
    numbers = architecture(setup.config())
    keeps = KEEPS[keeps] if isinstance(keeps, str) else keeps
    keeps.check(numbers, setup)
    run = _ClosedForm(setup, numbers, keeps)
    moments, peak = run.run()
    notes = ["formulas for the activations and an estimate of the backward pass's temporaries"]
    outside = out_of_range(run.n, run.targets, peak.bytes)
    return MemoryBreakdown(
        "closed form", setup, tuple(moments), peak, {"transformers": keeps.versions}, terms=tuple(run.ledger.terms),
        notes=tuple([*notes, outside] if outside else notes),
    )  # fmt: skip


def out_of_range(n: Numbers, targets: tuple[Weight, ...], peak_bytes: int) -> str:
    """Say where the formulas are low: attention's backward pass needs more than the MLP's, of which they have a term.

    Kernels that write their scores out ("math", "eager") make three matrices of them there: the gradient after and before
    softmax and the product of gradient and output; fused ones add up the queries' gradient in fp32 (``cuda_kernels``).
    Empty if what is missing is below 2 % of the peak.
    """
    row = (
        (1 if n.setup.loop == "onegpu" else n.B) * n.arch.heads * n.S
    )  # ours attends to one example at a time
    of_attention = 3 * 4 * row * n.S if n.kernel in ("math", "eager") else 4 * row * (1 + n.arch.head_dim)
    missing = of_attention - sum(layer_backward_bytes(n, targets))
    if missing <= 0.02 * peak_bytes:
        return ""
    return (
        f"{OUT_OF_RANGE}: attention's backward pass by the {n.kernel} kernel needs up to {format_bytes(missing, 'GiB')} "
        "that the formulas don't have; believe the simulation"
    )


def _check_known(setup: ResolvedSetup) -> None:
    """Refuse by name what the formulas don't have."""
    unknown = {
        f"task={setup.task!r}": setup.task != "sft",
        "lengths": setup.lengths is not None,
        "loop='trl'": setup.loop == "trl",
        "method='full' in our trainer": setup.loop == "onegpu" and setup.method == "full",
        "attention='sdpa_expanded'": setup.attention == "sdpa_expanded",
        "use_dora": setup.use_dora,
        "modules_to_save": bool(setup.modules_to_save),
        "quantization='int8'": setup.quantization == "int8",
        f"optim={setup.optim!r}": setup.optim == "adafactor" or "lion" in setup.optim,
    }
    found = [name for name, is_so in unknown.items() if is_so]
    if found:
        raise ValueError(f"the formulas don't know {', '.join(found)}: use simulated()")


@dataclass
class _Held:
    category: str
    blocks: list[Block]


@dataclass
class _Ledger:
    """Takes and gives tensors by size, with an allocator behind, and notes terms the first time."""

    allocator: CachingAllocator | ExactAllocator
    terms: list[Term] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CATEGORIES, 0))
    noting: bool = True
    phase: str = "loading"
    peak: int = 0
    peak_sizes: dict[str, int] = field(default_factory=dict)
    peak_phase: str = "loading"
    high: int = 0
    high_sizes: dict[str, int] = field(default_factory=dict)

    def take(self, category: str, *sizes: int, form: Form | None = None) -> _Held:
        """Take tensors of these sizes; note them as a term if a form is given."""
        blocks = [self.allocator.malloc(size) for size in sizes if size]
        for block in blocks:
            self.sizes[category] += block.requested_bytes
            self.sizes["rounding"] += block.size - block.requested_bytes
        self._look()
        if form is not None:
            self.note(category, form, sum(sizes))
        return _Held(category, blocks)

    def note(self, category: str, form: Form, size: int) -> None:
        """Note a term."""
        if self.noting and size:
            self.terms.append(Term(category, form.formula, form.reason, size))

    def give(self, *held: _Held) -> None:
        """Give tensors back."""
        for one in held:
            for block in one.blocks:
                self.sizes[one.category] -= block.requested_bytes
                self.sizes["rounding"] -= block.size - block.requested_bytes
                self.allocator.free(block)
            one.blocks = []

    def use(self, category: str, *sizes: int, form: Form | None = None) -> None:
        """Take tensors and give them back at once."""
        self.give(self.take(category, *sizes, form=form))

    def begin(self, phase: str) -> None:
        """Name what comes next."""
        self.phase = phase
        self.high, self.high_sizes = self.allocator.allocated_bytes, dict(self.sizes)

    def moment(self, name: str) -> Moment:
        """The state now ("in_step": at its highest since the step began)."""
        if name == "in_step":
            total, sizes = self.high, self.high_sizes
        else:
            total, sizes = self.allocator.allocated_bytes, self.sizes
        return Moment(name, total, self.peak, {c: n for c, n in sizes.items() if n})

    def _look(self) -> None:
        total = self.allocator.allocated_bytes
        if total > self.high:
            self.high, self.high_sizes = total, dict(self.sizes)
        if total > self.peak:
            self.peak, self.peak_sizes, self.peak_phase = total, dict(self.sizes), self.phase


class _ClosedForm:
    def __init__(self, setup: ResolvedSetup, numbers: Architecture, keeps: Keeps):
        self.setup, self.keeps = setup, keeps
        self.n = Numbers(numbers, setup)
        self.ledger = _Ledger(ExactAllocator() if setup.gpu.is_cpu else CachingAllocator())
        self.targets = lora_targets(numbers, setup)
        self.outputs: list[_Held] = []
        self.gradients: list[_Held] = []

    def run(self) -> tuple[list[Moment], Peak]:
        ledger = self.ledger
        self.load()
        moments = [ledger.moment("loaded")]
        for step in (1, 2):
            of = "" if step == 1 else " of the second step"
            for micro in range(min(self.setup.gradient_accumulation_steps, 2)):
                ledger.begin("the forward pass" + of)
                self.forward()
                forward_done = ledger.moment("after_forward")
                ledger.begin("the backward pass" + of)
                self.backward(first=micro == 0)
            if step == 1:
                moments += [forward_done, ledger.moment("after_backward")]
            ledger.begin("optimizer.step()" + of)
            self.step(first=step == 1)
            if step == 1:
                moments += [ledger.moment("in_step"), ledger.moment("after_step")]
                ledger.give(*self.gradients)
                ledger.noting = False
        moments.append(ledger.moment("second_step"))
        by_category = {c: n for c, n in ledger.peak_sizes.items() if n}
        return moments, Peak(ledger.peak, ledger.peak_phase, by_category)

    # --- loading -------------------------------------------------------------------------------------------

    def load(self) -> None:
        setup, n, ledger = self.setup, self.n, self.ledger
        weights = n.arch.weights()
        if not setup.gpu.is_cpu and self.keeps.warm_up:
            ledger.allocator.free(ledger.allocator.malloc(sum(self._stored(w) for w in weights)))
            ledger.allocator.peak_allocated_bytes = 0
        if setup.method != "qlora":
            b = DTYPE_BYTES[setup.dtype]
            ledger.take("weights", *(w.size * b for w in weights))
            ledger.note("weights", Form(f"P {b} = {n.arch.parameters:,} x {b}", f"every parameter in {setup.dtype}"),
                        n.arch.parameters * b)  # fmt: skip
        else:
            self._load_quantized(weights)
        for size, form in self.keeps.buffers(n.arch):
            ledger.take("buffers", *size, form=form)
        if setup.adapters:
            shapes = self.targets * n.arch.layers
            b = DTYPE_BYTES[setup.lora_dtype]
            count = sum(setup.lora_r * (rows + columns) for rows, columns in (w.shape for w in shapes))
            ledger.take("lora", *(setup.lora_r * side * b for w in shapes for side in w.shape[::-1]), form=Form(
                f"{b} r sum(in + out) = {b} x {count:,}", f"A and B beside {len(shapes)} layers, in {setup.lora_dtype}"))  # fmt: skip

    def _load_quantized(self, weights: tuple[Weight, ...]) -> None:
        setup, ledger = self.setup, self.ledger
        b = DTYPE_BYTES[setup.dtype]
        rest_bytes = 4 if setup.prepare_kbit else b
        packed = scales = rest = 0
        for w in weights:
            if not w.linear:
                size = w.size * self._rest_bytes(w, rest_bytes)
                ledger.take("weights", size)
                rest += size
                continue
            state = self._state_sizes(w.size)
            whole = ledger.take("temporaries", w.size * b)
            ledger.take("weights", w.size // 2)
            scale = 4 * -(-w.size // 64)
            passing = (
                ledger.take("temporaries", scale, scale)
                if setup.double_quantization
                else _Held("temporaries", [])
            )
            ledger.take("quantization_state", *state)
            ledger.give(passing, whole)
            packed, scales = packed + w.size // 2, scales + sum(state)
        if setup.double_quantization:
            ledger.take("quantization_state", 1024)
        quantized = sum(w.size for w in weights if w.linear)
        ledger.note(
            "weights", Form(f"n / 2 = {quantized:,} / 2", "linear layers, two weights to a byte"), packed
        )
        ledger.note("weights", Form(f"{rest_bytes} (P - n) = {rest_bytes} x {sum(w.size for w in weights) - quantized:,}",
                    "embeddings, head, norms, biases" + (", made fp32 by prepare_model_for_kbit_training" if setup.prepare_kbit else "")), rest)  # fmt: skip
        formula = "n/64 + 4 n/16384" if setup.double_quantization else "4 n/64"
        ledger.note(
            "quantization_state",
            Form(f"{formula}, n = {quantized:,}", "scales of blocks of 64, and tables"),
            scales,
        )

    def _rest_bytes(self, w: Weight, rest_bytes: int) -> int:
        if self.setup.loop == "onegpu" and "norm" in w.name and "ln_" not in w.name:
            return 4  # our own trainer keeps norms in fp32
        return rest_bytes

    def _state_sizes(self, size: int) -> tuple[int, ...]:
        blocks = -(-size // 64)
        if not self.setup.double_quantization:
            return (4 * blocks, 64)
        return (blocks, 64, 4, 4 * -(-blocks // 256), 1024)

    def _stored(self, w: Weight) -> int:
        if self.setup.method == "qlora" and w.linear:
            return w.size // 2
        return w.size * DTYPE_BYTES[self.setup.dtype]

    # --- forward -------------------------------------------------------------------------------------------

    def forward(self) -> None:
        setup, n, ledger = self.setup, self.n, self.ledger
        batch = ledger.take(
            "activations",
            8 * n.T,
            8 * n.T,
            form=Form(f"2 x 8 T = 16 x {n.T:,}", "input ids and labels, int64"),
        )
        self._workspace("forward")
        self.saved: list[list[_Held]] = []
        embedding = []
        if setup.gradient_checkpointing or n.embedding_is_saved:
            embedding.append(ledger.take("activations", n.s * n.T * n.arch.hidden, form=Form(
                f"s T h = {n.s} x {n.T:,} x {n.arch.hidden:,}", "the embeddings' output")))  # fmt: skip
        self.embedding = embedding
        if n.arch.family == "gpt2" and n.arch.dropout:
            embedding.append(ledger.take("activations", n.mask_bytes * n.T * n.arch.hidden, form=Form(
                f"{n.mask_bytes} T h", "dropout mask of the embeddings")))  # fmt: skip
        copies = self._autocast_copies()
        for layer in range(n.arch.layers):
            if setup.gradient_checkpointing:
                size = n.s * n.T * n.arch.hidden
                if layer == 1:
                    ledger.note("activations", Form(f"(L - 1) s T h = {n.arch.layers - 1} x {size:,}",
                                "the input of each layer but the first: all that checkpointing keeps"), size * (n.arch.layers - 1))  # fmt: skip
                self.saved.append([ledger.take("activations", size)] if layer else [])
            else:
                self.saved.append(self._take_layer(layer))
        self.final = [ledger.take("activations", *self._final_norm())]
        self._loss_forward()
        if setup.gradient_checkpointing:
            ledger.give(*copies[1:])  # autocast lets go of them; what is recomputed makes its own
            copies = copies[:1]
        self.copies = copies
        self._drop_outputs()
        self.batch = batch

    def _autocast_copies(self) -> list[_Held]:
        """16-bit copies of fp32 weights under autocast: of the head, then of the layers."""
        setup, n, ledger = self.setup, self.n, self.ledger
        if not setup.mixed_precision:
            return []
        arch = n.arch
        copies = []
        if setup.logits == "all" and (setup.prepare_kbit or setup.dtype == "fp32"):
            copies.append(ledger.take("activations", 2 * arch.vocab * arch.hidden, form=Form(
                f"2 V h = 2 x {arch.vocab:,} x {arch.hidden:,}", "the fp32 head's 16-bit copy, by autocast")))  # fmt: skip
        else:
            copies.append(ledger.take("activations"))
        if n.trains_all and setup.dtype == "fp32":
            linear = [2 * w.size for w in arch.layer_weights() if w.linear] * arch.layers
            copies.append(ledger.take("activations", *linear, form=Form(
                f"2 n, n = {sum(linear) // 2:,}", "16-bit copies of the linear layers, by autocast")))  # fmt: skip
        elif (
            setup.adapters
            and setup.lora_dtype == "fp32"
            and not (setup.loop == "onegpu" and setup.method == "qlora")
        ):
            sides = [2 * setup.lora_r * side for w in self.targets for side in w.shape[::-1]] * arch.layers
            copies.append(ledger.take("lora", *sides, form=Form(
                f"2 r sum(in + out) = {sum(sides):,}", "16-bit copies of the adapters, by autocast")))  # fmt: skip
        return copies

    def _take_layer(self, layer: int) -> list[_Held]:
        held = []
        for category, sizes, form in saved_by_layer(self.n, self.targets, self.keeps, first=layer == 0):
            held.append(self.ledger.take(category, *sizes))
            if layer == self.n.arch.layers - 1:
                self.ledger.note(
                    category, Form(f"L ({form.formula})", form.reason), sum(sizes) * self.n.arch.layers
                )
        return held

    def _final_norm(self) -> tuple[int, ...]:
        n = self.n
        size = n.T * n.arch.hidden
        if n.arch.family == "llama":
            return (4 * size, *((n.c * size, n.c * size) if n.trains_all else ()))
        return (n.s * size, *((n.c * size,) if n.trains_all else ()))

    def _loss_forward(self) -> None:
        setup, n, ledger = self.setup, self.n, self.ledger
        V = n.arch.vocab
        if setup.logits == "supervised" and setup.loop == "onegpu":
            N = setup.supervised_tokens
            self.logits = []
            hidden = ledger.take("activations", n.s * N * n.arch.hidden)
            positions = min(N, head_chunk(V))
            gradient = 4 * N * n.arch.hidden
            self.loss = [ledger.take("activations", gradient, form=Form(
                f"4 N h = 4 x {N:,} x {n.arch.hidden:,}", "gradient of the supervised hidden states, made with the loss"))]  # fmt: skip
            copy, chunk = n.w if n.w < 4 else 0, positions * V
            # Of a second chunk, made while the first is at hand.
            following = min(positions, N - positions) * V
            if 8 * chunk + (copy + 4) * following > (copy + 8) * chunk:
                ledger.use("logits_and_loss", 4 * chunk, 4 * chunk, copy * following, 4 * following, form=Form(
                    f"(4 + 4) {positions} V + ({'w + ' if copy else ''}4) {following // V} V, V = {V:,}",
                    "logits and their gradient of a chunk of supervised tokens, and logits of the next"))  # fmt: skip
            else:
                ledger.use("logits_and_loss", copy * chunk, 4 * chunk, 4 * chunk, form=Form(
                    f"({'w + ' if copy else ''}4 + 4) {positions} V, V = {V:,}",
                    "logits of a chunk of supervised tokens, given back at once"))  # fmt: skip
            ledger.give(hidden)
            return
        self.logits = [ledger.take("logits_and_loss", n.l * n.T * V, form=Form(
            f"l T V = {n.l} x {n.T:,} x {V:,}", "logits of every token"))]  # fmt: skip
        self.loss, scratch = self.keeps.loss_forward(ledger, n)
        ledger.give(*scratch)
        if setup.loop != "plain":
            ledger.give(*self.logits)  # with compute_loss's variables
            self.logits = []
        self.scalars = ledger.take("activations", 4, 4)

    def _drop_outputs(self) -> None:
        """The new outputs have replaced the old ones."""
        self.ledger.give(*self.outputs)
        self.outputs = []

    # --- backward ------------------------------------------------------------------------------------------

    def backward(self, *, first: bool) -> None:
        setup, n, ledger = self.setup, self.n, self.ledger
        self._workspace("backward")
        weights = list(n.arch.weights())
        fresh = first and n.trains_all
        gradients = []
        b = DTYPE_BYTES[setup.dtype]
        head_gradient = None
        if setup.logits == "all":
            for held in self.keeps.loss_backward(ledger, n, self.loss):
                if fresh:
                    head_gradient = ledger.take("gradients", n.arch.vocab * n.arch.hidden * b)
                ledger.give(held)
            self.loss = []
        stream = ledger.take("temporaries", n.s * n.T * n.arch.hidden)
        ledger.give(*self.final)
        per_layer = n.arch.layer_weights()
        for held in reversed(self.saved):
            if setup.gradient_checkpointing:
                held = [*held, *self._recompute()]
            ledger.use("temporaries", *layer_backward_bytes(n, self.targets))
            if setup.method == "qlora":
                ledger.use("dequantized", *self._dequantized())
            if fresh:
                gradients.append(ledger.take("gradients", *(w.size * b for w in per_layer)))
            elif first and setup.adapters:
                lb = DTYPE_BYTES[setup.lora_dtype]
                gradients.append(
                    ledger.take(
                        "gradients",
                        *(setup.lora_r * side * lb for w in self.targets for side in w.shape[::-1]),
                    )
                )
            self._release_layer(held)
        if fresh:
            rest = [
                w
                for w in weights
                if w.name in ("embedding", "positions", "final_norm.weight", "final_norm.bias")
            ]
            if n.arch.tied and head_gradient is not None:
                ledger.use("temporaries", rest[0].size * b)
                rest = rest[1:]
            gradients.append(ledger.take("gradients", *(w.size * b for w in rest)))
            gradients.append(head_gradient)
        ledger.give(stream, *self.copies)
        if self.embedding and setup.loop == "plain" and setup.gradient_checkpointing and setup.adapters:
            gradient = ledger.take("temporaries", n.s * n.T * n.arch.hidden, form=Form(
                f"s T h = {n.s} x {n.T:,} x {n.arch.hidden:,}", "the embeddings' output is made a leaf, and leaves have a gradient"))  # fmt: skip
            self.outputs += [*self.embedding, gradient]
        else:
            ledger.give(*self.embedding)
        if first:
            self.gradients = gradients
            total = sum(sum(block.requested_bytes for block in held.blocks) for held in gradients)
            sizes, each = self._trained()
            count = sum(sizes)
            letter = "c n" if each == b else f"{each} n"
            formula = f"{letter} = {each} x {count:,}" if total == each * count else f"{total:,}"
            ledger.note("gradients", Form(formula, "one for each trainable number, in its dtype"), total)
        if setup.loop == "plain":
            self.outputs += [*self.logits, self.scalars, self.batch, *getattr(self, "cache", [])]
            self.cache = []
        else:
            ledger.give(*self.logits, self.batch, *([self.scalars] if setup.logits == "all" else self.loss))

    def _recompute(self) -> list[_Held]:
        return [
            self.ledger.take(category, *sizes)
            for category, sizes, _ in saved_by_layer(self.n, self.targets, self.keeps, first=False)
            if category != "kv_cache"
        ] + [
            self.ledger.take("activations", *sizes)
            for category, sizes, _ in saved_by_layer(self.n, self.targets, self.keeps, first=False)
            if category == "kv_cache"
        ]

    def _release_layer(self, held: list[_Held]) -> None:
        """Give back what a layer saved; the cache stays if a variable holds it."""
        for one in held:
            if one.category == "kv_cache" and self.setup.keeps_outputs:
                self.cache = [*getattr(self, "cache", []), one]
            else:
                self.ledger.give(one)

    def _dequantized(self) -> tuple[int, ...]:
        largest = max((w.size for w in self.n.arch.layer_weights() if w.linear), default=0)
        return (2 * largest if self.setup.dtype != "fp32" else 4 * largest, 4 * -(-largest // 64))

    # --- optimizer -----------------------------------------------------------------------------------------

    def step(self, *, first: bool) -> None:
        setup, ledger = self.setup, self.ledger
        sizes, b = self._trained()
        name = setup.optim
        if first:
            in_fp32 = self._embeddings() if "8bit" in name and setup.loop != "plain" else []
            states: list[int] = []
            for i, size in enumerate(sizes):
                states += _state_bytes(name, size, b, in_fp32=i < len(in_fp32))
            if "8bit" in name:
                states += [1024, 1024]
            ledger.take("optimizer_state", *states, form=Form(
                _state_formula(name, b, sum(sizes), sum(in_fp32)), "what the optimizer remembers of each trainable number"
                + (", in fp32 of embeddings: the Trainer asks for that" if in_fp32 else "")))  # fmt: skip
        if name == "adamw_torch":
            ledger.use("optimizer_temporaries", *(size * b for size in sizes), form=Form(
                f"{b} x {sum(sizes):,}", "foreach takes the root of all second moments at once"))  # fmt: skip
        elif name == "adamw_single":
            last, size = max(zip([0, *sizes], sizes, strict=False), key=lambda pair: pair[0] + 2 * pair[1])
            ledger.use("optimizer_temporaries", last * b, size * b, size * b, form=Form(
                f"{b} ({last:,} + 2 x {size:,})", "one tensor at a time: root, quotient, and the quotient before"))  # fmt: skip

    def _trained(self) -> tuple[list[int], int]:
        setup, n = self.setup, self.n
        if n.trains_all:
            return [w.size for w in n.arch.weights()], DTYPE_BYTES[setup.dtype]
        sizes = [setup.lora_r * side for w in self.targets for side in w.shape[::-1]]
        return sizes * n.arch.layers, DTYPE_BYTES[setup.lora_dtype]

    def _embeddings(self) -> list[int]:
        """Sizes of the trained embeddings, which come first among the weights."""
        weights = self.n.arch.weights() if self.n.trains_all else ()
        return [w.size for w in weights if w.name in ("embedding", "positions")]

    def _workspace(self, of: str) -> None:
        size = self.setup.gpu.cublas_workspace_bytes
        if size and of not in getattr(self, "_workspaces", ()):
            self._workspaces = (*getattr(self, "_workspaces", ()), of)
            self.ledger.take(
                "cublas_workspace",
                size,
                form=Form(f"{size:,}", f"cuBLAS's scratch, for the thread of the {of} pass"),
            )


def _state_bytes(name: str, size: int, b: int, *, in_fp32: bool) -> list[int]:
    if name == "sgd" or (name.startswith("paged") and size >= PAGED_FROM):
        return [] if "8bit" not in name or in_fp32 else [4 * -(-size // 256)] * 2
    if "8bit" in name and size >= 4096 and not in_fp32:
        return [size, size, 4 * -(-size // 256), 4 * -(-size // 256)]
    if "8bit" in name or name.startswith("paged"):
        return [4 * size, 4 * size]
    return [size * b, size * b, *([4] if name == "adamw_torch_fused" else [])]


def _state_formula(name: str, b: int, count: int, in_fp32: int) -> str:
    if "8bit" in name:
        more = f" + 8 x {in_fp32:,}" if in_fp32 else ""
        return f"2 (1 + 4/256) n{more}, n = {count - in_fp32:,}"
    if name == "sgd":
        return "0"
    return f"2 x {b} n, n = {count:,}"
