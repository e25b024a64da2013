"""The keys that people's files have beside question and answer, and what becomes of each.

A key is *handed on* to the chat template (tools, reasoning), *honoured* (system prompts, switches that say which turn is
learned), *refused* where it can't be honoured (images, weights between 0 and 1), or *known* to change nothing (ids and the
like). Any other key that holds something is counted as unused, and the count is reported.

Sources: the formats as they are documented by OpenAI (fine-tuning), axolotl (chat_template, message_field_training),
LLaMA-Factory (alpaca, sharegpt), TRL (dataset formats), mistral-finetune (weights), ms-swift and XTuner (loss), torchtune
(masked).
"""

from __future__ import annotations

SYSTEM = ("system", "system_prompt", "system_message")
"""Row keys whose text is the system message."""

TOOLS = ("tools", "functions", "available_tools")
"""Row keys that hold the tools on offer."""

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Turn keys that hold what a model thinks before it answers."""

LEARN = (
    "weight",
    "train",
    "training",
    "trainable",
    "learn",
    "loss",
    "supervised",
    "loss_weight",
    "loss_scale",
    "train_on_turn",
)
"""Turn keys that switch learning on (1, true) or off (0, false)."""

IGNORE_TURN = ("masked", "ignore_loss")
"""Turn keys that switch learning off where they are true."""

ROW_WEIGHTS = ("weight", "sample_weight", "loss_weight")
"""Row keys that would weigh a whole row."""

VERDICTS = ("kto_tag", "label")
"""Row keys that say whether an answer is wanted (true) or not (false): LLaMA-Factory's and TRL's rows for KTO."""

REFUSED_IN_ROWS = (
    "images",
    "image",
    "videos",
    "video",
    "audios",
    "audio",
    "mask",
    "roles_to_train",
    "train_on_prompt",
    "loss_scale",
    "loss_mask",
    "completion_mask",
    "assistant_masks",
)
"""Row keys that change what is learned and can't be honoured here."""

REFUSED_IN_TURNS = (
    "images", "image", "audio", "mask", "train_detail", "training_detail", "train_details", "loss_mask", "prefix",
)  # fmt: skip
"""Turn keys that change what is learned and can't be honoured here."""

HANDED_ON_IN_TURNS = ("name", "tool_call_id")
"""Turn keys that go to the chat template as they are."""

TURN_KEYS = frozenset(
    {"role", "from", "content", "value", "text", "tool_calls", "function_call", "refusal"}
    | {*REASONING, *LEARN, *IGNORE_TURN, *REFUSED_IN_TURNS, *HANDED_ON_IN_TURNS}
)

KNOWN = frozenset(
    [
        "id",
        "idx",
        "index",
        "row",
        "uid",
        "uuid",
        "hash",
        "source",
        "src",
        "origin",
        "dataset",
        "dataset_name",
        "category",
        "topic",
        "subject",
        "subset",
        "task",
        "domain",
        "language",
        "lang",
        "split",
        "url",
        "link",
        "license",
        "author",
        "created",
        "created_at",
        "timestamp",
        "date",
        "meta",
        "metadata",
        "tags",
        "model",
        "generator",
        "prompt_id",
        "conversation_id",
        "message_id",
        "turn_id",
        "parent_id",
        "name",
        "is_classification",
        "num_turns",
        "n_turns",
        "turn",
        "length",
        "token_count",
        "num_tokens",
    ]
)
"""Keys that name or describe a row and change nothing that is learned."""

FORM_KEYS = {
    "messages": frozenset({"messages"}),
    "sharegpt": frozenset({"conversations"}),
    "prompt_completion": frozenset({"prompt", "completion"}),
    "alpaca": frozenset({"instruction", "input", "context", "output", "response", "history"}),
    "self_instruct": frozenset({"instruction", "instances"}),
}
"""Keys that each form reads."""

ROW_KEYS = frozenset(
    {
        *SYSTEM,
        *TOOLS,
        *REFUSED_IN_ROWS,
        *ROW_WEIGHTS,
        "documents",
        "chat_template_kwargs",
        "parallel_tool_calls",
    }
)
"""Keys that every form reads."""
