"""``onegpu chat``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from onegpu.cli.app import app


@app.command()
def chat(
    model: Annotated[
        str,
        typer.Argument(help="Folder of a run, adapter or model; catalogue name, hub id; or a .gguf file."),
    ],
    prompt: Annotated[str | None, typer.Option(help="Answer this and end.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show the base model's answers beside the tuned one's.")
    ] = False,
    system: Annotated[
        str | None, typer.Option(help="System prompt ('' for none). Otherwise the one of the run's rows.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from this share of the likeliest tokens.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="Cut an answer after so many tokens.")] = 512,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    base: Annotated[
        str | None, typer.Option(help="Base of an adapter, in place of the one it names.")
    ] = None,
) -> None:
    """Talk to a model in the terminal. A text on stdin is answered once, as one prompt."""
    from onegpu.chat import Comparison, Conversation, Sampling, find_place, open_speaker, run_system_prompt
    from onegpu.chat.terminal import answer_once, converse

    sampling = Sampling(temperature, top_p, max_new_tokens, seed)
    place = find_place(model)
    if compare and place.kind != "adapter":
        raise ValueError(
            f"--compare needs a run or an adapter, to show its base beside it: {model} is a {place.kind}"
        )
    if base is not None and place.kind != "adapter":
        raise ValueError(f"--base is for adapters: {model} is a {place.kind}")
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    if prompt is not None and not prompt.strip():
        raise ValueError("the prompt is empty: give a text with --prompt or on stdin")
    if system is None:
        system = run_system_prompt(place)
    speaker = open_speaker(model, base=base)
    talk = Conversation(speaker, system or None, sampling)
    if compare:
        talk = Comparison(Conversation(speaker.without_adapters(), system or None, sampling), talk)
    if prompt is not None:
        answer_once(talk, prompt.strip())
        return
    print(f"{speaker.name}: {place}")
    if system:
        print(f"system prompt: {system}")
    converse(talk)
