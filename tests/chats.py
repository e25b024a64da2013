"""Chats that a tiny model can be trained on in a moment."""

QUESTIONS = [
    "Where is my parcel?",
    "I was charged twice.",
    "Reset my password please, the link is dead.",
    "Does it come in blue?",
    "Cancel order 12.",
    "The mug arrived broken, and the box was wet as well.",
    "Thanks, all good",
    "When do you open?",
    "I want to send back the lamp",
    "Stop the newsletter.",
]


def chat(i: int) -> dict:
    """The i-th chat: short rows whose lengths differ."""
    return {
        "messages": [
            {"role": "user", "content": QUESTIONS[i % len(QUESTIONS)]},
            {"role": "assistant", "content": f"Answer {i}: we are on it." + " Sorry." * (i % 4)},
        ]
    }
