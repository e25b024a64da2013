"""Somebody who answers: a model of transformers, or a GGUF file in llama.cpp, with the same three methods."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from onegpu import models, runtime
from onegpu.chat.places import Place, base_of, find_place
from onegpu.qlora_finetune.bases import read_base

Messages = Sequence[dict[str, str]]
Write = Callable[[str], Any]


@dataclass(frozen=True)
class Sampling:
    """How an answer is chosen. Temperature 0 takes the likeliest token each time."""

    temperature: float = 0.0
    top_p: float = 1.0
    max_new_tokens: int = 512
    seed: int = 0

    def __post_init__(self):
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}, expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, expected above 0 and at most 1")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}, expected at least 1")


@dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes
    ----------
    text : str
        Without special tokens.
    stopped : bool
        Whether the model ended it, with a stop token; False where ``max_new_tokens`` did.
    prompt_tokens : int
        Tokens of the rendered conversation before it.
    """

    text: str
    stopped: bool
    prompt_tokens: int


class Speaker(Protocol):
    """What a conversation needs of a model."""

    name: str

    def reply(self, messages: Messages, write: Write, sampling: Sampling = Sampling()) -> Reply:
        """Answer a conversation that ends with a user turn, handing on text as it comes."""


class TransformersSpeaker:
    """A causal LM of transformers, or a peft model with its adapters on or off."""

    def __init__(self, model: Any, tokenizer: Any, name: str, *, adapters: bool = True):
        if not tokenizer.chat_template:
            raise ValueError(
                f"{name} has no chat template, so nobody can talk to it in turns: it is a base model. Take its instruct "
                "version, or fine-tune it on chats first"
            )
        self.model, self.tokenizer, self.name, self.adapters = model, tokenizer, name, adapters

    def without_adapters(self) -> TransformersSpeaker:
        """Return the same model with its adapters off: the base that it was trained from."""
        return TransformersSpeaker(self.model, self.tokenizer, "base", adapters=False)

    def voice(self) -> contextlib.AbstractContextManager:
        """Return the context in which the model speaks as this speaker: with its adapters, or without."""
        return contextlib.nullcontext() if self.adapters else self.model.disable_adapter()

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Render a conversation up to where the answer begins."""
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def reply(self, messages: Messages, write: Write, sampling: Sampling = Sampling()) -> Reply:
        """Answer a conversation that ends with a user turn, handing on text as it comes."""
        import torch

        from onegpu.qlora_finetune.evaluation import end_tokens

        ids = self.prompt_ids(messages)
        room = getattr(self.model.config, "max_position_embeddings", None) or 2**31
        if len(ids) >= room:
            raise ValueError(
                f"the conversation has {len(ids):,} tokens and {self.name} reads {room:,}: start a new one"
            )
        end = end_tokens(self.model, self.tokenizer)
        if sampling.temperature:
            chosen = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": 0,
            }
            torch.manual_seed(sampling.seed)
        else:
            chosen = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        input_ids = torch.tensor([ids], device=self.model.device)
        with torch.no_grad(), self.voice():
            out = self.model.generate(
                input_ids=input_ids, attention_mask=torch.ones_like(input_ids), eos_token_id=end, pad_token_id=end[0],
                max_new_tokens=min(sampling.max_new_tokens, room - len(ids)),
                streamer=_streamer(self.tokenizer, write), **chosen,
            )  # fmt: skip
        new = out[0, len(ids) :].tolist()
        text = self.tokenizer.decode(new, skip_special_tokens=True).strip()
        return Reply(text, bool(new) and new[-1] in end, len(ids))


def _streamer(tokenizer: Any, write: Write) -> Any:
    from transformers import TextStreamer

    class Streamer(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            if text:
                write(text)

    return Streamer(tokenizer, skip_prompt=True, skip_special_tokens=True)


def open_speaker(
    name: str | Path, *, base: str | None = None, quantization: str | None = "as trained"
) -> Speaker:
    """Open whatever a path or name stands for, to talk to it.

    Parameters
    ----------
    name
        The folder of a run, an adapter's or a model's folder, a catalogue name, a hub id, or a GGUF file.
    base
        Of an adapter, in place of the one that it names.
    quantization
        None, "nf4" or "int8" in place of what an adapter was trained on. Models are loaded unquantized.

    Raises
    ------
    ValueError
        If there is nothing to talk to; the message says what was found and what to do.
    """
    place = find_place(name)
    if place.kind == "gguf":
        from onegpu.chat.llama_cpp import LlamaCppSpeaker

        return LlamaCppSpeaker(place.path)
    if place.kind == "model":
        loaded = models.load(place.path, quantization=None if quantization == "as trained" else quantization)
        return TransformersSpeaker(loaded.model, loaded.tokenizer, str(loaded.name))
    loaded = load_with_adapter(place, base=base, quantization=quantization)
    return TransformersSpeaker(loaded.model, loaded.tokenizer, "tuned")


def load_with_adapter(
    place: Place, *, base: str | None = None, quantization: str | None = "as trained", dtype: Any = None
) -> models.Loaded:
    """Load an adapter on its base.

    Raises
    ------
    ValueError
        If the base can't be had here or has other shapes than the adapter.
    """
    from peft import PeftModel
    from transformers import AutoTokenizer, GenerationConfig

    if base is None:
        named, trained = base_of(place)
    else:
        recorded = read_base(Path(place.path))
        named, trained = (
            base,
            None if recorded is None or recorded.quantization == "unknown" else recorded.quantization,
        )
    how = trained if quantization == "as trained" else quantization
    try:
        loaded = models.load(named, quantization=how, dtype=dtype)
    except models.ModelNotAvailable as error:
        raise ValueError(
            f"the adapter {place.path} stands on {named}, which can't be had: {error}"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"the adapter {place.path} stands on {named}, which isn't here ({error}). Give the base with --base"
        ) from error
    runtime.quiet()
    try:
        with warnings.catch_warnings():  # peft 0.21 asks for a property that transformers 5.24 has renamed
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
            model = PeftModel.from_pretrained(loaded.model, str(place.path)).eval()
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        raise ValueError(
            f"the adapter {place.path} doesn't fit {named}: its weights have other shapes. Give its own base with --base"
        ) from None
    tokenizer = loaded.tokenizer
    if (Path(place.path) / "tokenizer_config.json").is_file():
        tokenizer = AutoTokenizer.from_pretrained(place.path, local_files_only=True)
    if (
        Path(place.path) / "generation_config.json"
    ).is_file():  # the ids that end an answer, as they were trained
        model.generation_config = GenerationConfig.from_pretrained(place.path, local_files_only=True)
    return replace(loaded, model=model, tokenizer=tokenizer)
