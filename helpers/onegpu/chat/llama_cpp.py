"""llama.cpp in this process (the package ``xllamacpp``): a GGUF file answers, and says how likely each token is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from onegpu.chat.speakers import Messages, Reply, Sampling, Write

INSTALL = "install it with `pip install 'onegpu[export]'` (in a checkout: `pip install -c constraints.txt -e \".[export]\"`)"


class Engine:
    """A GGUF file, loaded by llama.cpp.

    Parameters
    ----------
    file
        The model.
    context
        Tokens of a conversation at most; 0 for what the file says.
    adapter
        An adapter as GGUF, on top.

    Raises
    ------
    ValueError
        If llama.cpp isn't installed or can't load the file.
    """

    def __init__(self, file: str | Path, *, context: int = 0, adapter: str | Path | None = None):
        try:
            import xllamacpp
        except ImportError:
            raise ValueError(f"talking to a GGUF file needs llama.cpp (xllamacpp): {INSTALL}") from None
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.n_ctx = context
        params.n_parallel = 1
        params.warmup = False
        params.verbosity = -1
        # Its threads spin while they wait for each other. Where another process holds a core they spin in vain (30 times
        # the processor time, on two cores), so one core stays free.
        for pool in (params.cpuparams, params.cpuparams_batch):
            pool.n_threads = max(1, (psutil.cpu_count(logical=False) or 2) - 1)
            pool.poll = 0
        if adapter is not None:
            params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(adapter), 1.0)]
        try:
            self.server = xllamacpp.Server(params)
        except RuntimeError:
            raise ValueError(
                f"llama.cpp can't load {file}: the file is damaged, or of an architecture that this version doesn't know"
            ) from None

    def chat(self, messages: Messages, write: Write, sampling: Sampling) -> tuple[str, bool, int]:
        """Answer a conversation: the text, whether a stop token ended it, and the tokens of the prompt."""
        parts: list[str] = []
        last: dict[str, Any] = {}

        def take(chunk: Any) -> bool:
            chunk = json.loads(chunk) if isinstance(chunk, str) else chunk
            _raise_error(chunk)
            last.update({name: chunk[name] for name in ("usage", "timings") if chunk.get(name)})
            for choice in chunk.get("choices") or ():
                last["finish"] = choice["finish_reason"]
                text = (choice.get("delta") or {}).get("content")
                if text:
                    parts.append(text)
                    write(text)
            return False

        self.server.handle_chat_completions(
            {
                "messages": list(messages), "temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed,
                "max_tokens": sampling.max_new_tokens, "stream": True, "stream_options": {"include_usage": True},
            },
            take,
        )  # fmt: skip
        prompt_tokens = (last.get("usage") or {}).get("prompt_tokens", 0)
        return "".join(parts).strip(), last.get("finish") == "stop", prompt_tokens

    def next_token_logprobs(self, prompts: Sequence[Sequence[int]], top: int) -> list[dict[int, float]]:
        """Log-probabilities (nats) of the ``top`` likeliest next tokens after each prompt of token ids."""
        answer = self.server.handle_completions(
            {"prompt": [list(ids) for ids in prompts], "max_tokens": 1, "logprobs": top, "temperature": 0.0}
        )
        _raise_error(answer)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return [
            {t["id"]: t["logprob"] for t in choice["logprobs"]["content"][0]["top_logprobs"]}
            for choice in choices
        ]


def _raise_error(answer: dict[str, Any]) -> None:
    error = answer.get("error")
    if error:
        raise ValueError(f"llama.cpp says: {error.get('message', error)}")


class LlamaCppSpeaker:
    """A GGUF file, spoken to through llama.cpp, with the chat template and stop tokens inside the file."""

    def __init__(self, file: str | Path, *, context: int = 0):
        self.engine, self.name = Engine(file, context=context), Path(file).name

    def reply(self, messages: Messages, write: Write, sampling: Sampling = Sampling()) -> Reply:  # noqa: B008
        """Answer a conversation that ends with a user turn, handing on text as it comes."""
        return Reply(*self.engine.chat(messages, write, sampling))
