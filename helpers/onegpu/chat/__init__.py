"""Talk to a model: a base, an adapter on its base, a merged model, or a GGUF file through llama.cpp.

    speaker = open_speaker("runs/support_triage")
    speaker.reply([{"role": "user", "content": "Where is my parcel?"}], write=print)

In order of reading: ``places`` (what a path or name stands for), ``speakers`` (transformers), ``llama_cpp`` (the engine
behind GGUF files), ``conversation`` (turns, two models side by side) and ``terminal``.
"""

from onegpu.chat.conversation import Comparison, Conversation
from onegpu.chat.places import Place, find_place, run_system_prompt
from onegpu.chat.speakers import Reply, Sampling, TransformersSpeaker, open_speaker

__all__ = [
    "Comparison",
    "Conversation",
    "Place",
    "Reply",
    "Sampling",
    "TransformersSpeaker",
    "find_place",
    "open_speaker",
    "run_system_prompt",
]
