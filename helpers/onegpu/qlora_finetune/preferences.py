"""DPO with the machinery of a fine-tune: pairs packed into rows, and a reference that is the model as it was at the start.

That is the base, its adapters off, or the adapter that the run starts from. The loss is ``onegpu.preference_data.dpo_loss``, of log-probabilities of the completions alone. The reference's are asked
for when a pair comes for the first time, in a pass without gradients, and kept: no second model, one pass over the pairs
however many epochs there are, and none over pairs that a short run never meets.

Source: DPO, Rafailov et al. 2023, arXiv 2305.18290 (equation 7); names of the figures as TRL's DPOTrainer logs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from onegpu.packed_training.loss import example_logprobs
from onegpu.packed_training.packing import collate_rows
from onegpu.preference_data import dpo_loss, pair_accuracy, parts_of, sides_of
from onegpu.qlora_finetune.evaluation import Scores
from onegpu.qlora_finetune.trainer import PackedRows, QLoraTrainer
from onegpu.sft_datasets import TokenizedSet

REFERENCE_FILE = "reference.pt"
"""Where a checkpoint keeps the reference's log-probabilities of the pairs met so far."""


class PairRows(PackedRows):
    """Rows of pairs: item ``i`` is the list of the pairs packed into row ``i``, each with its number.

    Parameters
    ----------
    pairs
        From ``tokenize_pair_set``.
    rows
        Numbers of the pairs in each row.
    first
        What the number of the first pair is: training and held-out pairs are told apart by it.
    """

    def __init__(self, pairs: TokenizedSet, rows: Sequence[Sequence[int]], first: int = 0):
        super().__init__(pairs, rows)
        self.first = first

    def __getitem__(self, i: int) -> list[dict[str, Any]]:
        return [{"number": self.first + k, "pair": self.examples[k]} for k in self.rows[i]]

    def most_examples(self) -> list[dict[str, list[int]]]:
        """Return the sides of the row that holds the most pairs."""
        return [side for item in super().most_examples() for side in sides_of(item["pair"])]

    def spread(self, pairs: int) -> PairRows:
        """Return rows with about so many of the pairs, from all lengths."""
        return PairRows(self.examples, self.rows[:: max(1, len(self.examples) // pairs)], self.first)


def collate_pairs(rows: Sequence[Sequence[dict[str, Any]]], shared: bool = True) -> dict[str, Any]:
    """Lay all pairs end to end: chosen, rejected, chosen, rejected ...

    Parameters
    ----------
    rows
        Items of ``PairRows``.
    shared
        The prompt of a pair stands in the row once (``packed_sdpa``'s ``prefix_lens``). False: before each side.

    Returns
    -------
    dict
        As of ``collate_rows``; with ``prefix_lens`` where prompts are shared, and ``pairs``, the numbers of the pairs.
    """
    items = [item for row in rows for item in row]
    numbers = {"pairs": tuple(item["number"] for item in items)}
    if not shared:
        return collate_rows([[side for item in items for side in sides_of(item["pair"])]]) | numbers
    parts = [parts_of(item["pair"]) for item in items]
    batch = collate_rows([[part for both, _ in parts for part in both]])
    before = tuple(n for _, prompt in parts for n in (0, prompt))
    shift = [n for n, length in zip(before, batch["seq_lens"], strict=True) for _ in range(length)]
    return batch | numbers | {
        "position_ids": batch["position_ids"] + torch.tensor([shift]),
        "prefix_lens": before,
    }  # fmt: skip


class PreferenceTrainer(QLoraTrainer):
    """``QLoraTrainer`` on pairs. Takes ``PairRows`` as train and eval data, and a model with adapters.

    Dropout is switched off: policy and reference differ by training alone.

    Parameters
    ----------
    beta
        As in ``dpo_loss``.
    new_adapters
        Whether the adapters are new, so that the reference is the model without them. False: it is the model with them as
        they are now, of which a copy is kept.
    """

    shared_prompts = True

    def __init__(self, *args, beta: float = 0.1, new_adapters: bool = True, **kwargs):
        super().__init__(*args, **kwargs)
        self.beta = beta
        trained = [] if new_adapters else [p for p in self.model.parameters() if p.requires_grad]
        self._start = [(parameter, parameter.detach().clone()) for parameter in trained]
        self.reference: dict[int, tuple[float, float]] = {}
        self._seen: list[torch.Tensor] = []
        self._evaluated: list[torch.Tensor] = []
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "attention_dropout", None), float):
                module.attention_dropout = 0.0

    def collate(self, rows):
        """Lay pairs end to end, as the model can take them."""
        return collate_pairs(rows, shared=self.shared_prompts and self.layout.get("packed", True))

    @torch.no_grad()
    def check_shared_prompts(self, allowed: float) -> str:
        """See that a pair's prompt may stand in the row once, on the fullest row; else it will stand before each side.

        Parameters
        ----------
        allowed
            Nats per token by which the log-probabilities of a side may differ.

        Returns
        -------
        str
            What was found, empty where rows aren't packed.
        """
        if not self.layout.get("packed", True):
            return ""
        rows = self.train_dataset
        fullest = rows[max(range(len(rows)), key=lambda i: len(rows.rows[i]))]
        found = []
        was_training = self.model.training
        self.model.eval()
        for shared in (True, False):
            inputs = self._prepare_inputs(collate_pairs([fullest], shared=shared))
            with self.accelerator.autocast():
                found.append(example_logprobs(self.model, inputs, **self.layout))
        self.model.train(was_training)
        tokens = torch.tensor([sum(x != -100 for x in side["labels"]) for side in rows.most_examples()])
        difference = float(((found[0] - found[1]).cpu() / tokens).abs().max())
        self.shared_prompts = difference <= allowed
        how = (
            "each pair's prompt once"
            if self.shared_prompts
            else "a prompt before each side: sharing one differs"
        )
        return f"{how} ({difference:.1e} nats per token, allowed {allowed:.0e})"

    def pair_figures(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses of the pairs of a batch (pairs,), and without gradient a row of figures for each pair, (pairs, 5).

        The figures are loss, rewards of chosen and rejected, log-probabilities of chosen and rejected.
        """
        with self.accelerator.autocast():
            reference = self._reference_logprobs(inputs)
            logprobs = example_logprobs(self.model, inputs, **self.layout).view(-1, 2)
        done = dpo_loss(*logprobs.T, *reference.T, beta=self.beta)
        figures = (done.losses, done.chosen_rewards, done.rejected_rewards, *logprobs.T)
        return done.losses, torch.stack([column.detach() for column in figures], 1)

    @torch.no_grad()
    def _reference_logprobs(self, inputs: dict[str, Any]) -> torch.Tensor:
        """The reference's log-probabilities of chosen and rejected, (pairs, 2): kept, or asked for now."""
        numbers = inputs["pairs"]
        if any(number not in self.reference for number in numbers):
            with self._as_at_the_start():
                found = example_logprobs(self.model, inputs, **self.layout).view(-1, 2)
            for number, both in zip(numbers, found.tolist(), strict=True):
                self.reference.setdefault(number, tuple(both))
        return torch.tensor([self.reference[number] for number in numbers], device=inputs["input_ids"].device)

    @contextlib.contextmanager
    def _as_at_the_start(self) -> Iterator[None]:
        """The model as the reference."""
        if not self._start:
            with self.model.disable_adapter():
                yield
            return
        now = [parameter.data for parameter, _ in self._start]
        try:
            for parameter, then in self._start:
                parameter.data = then
            yield
        finally:
            for (parameter, _), data in zip(self._start, now, strict=True):
                parameter.data = data

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Sum of the pairs' losses over their number in the accumulated batch."""
        losses, figures = self.pair_figures(inputs)
        self.meter.add(inputs["input_ids"].numel(), int((inputs["labels"] != -100).sum()))
        self._seen.append(figures)
        loss = losses.sum() / (num_items_in_batch or len(losses))
        return (loss, {}) if return_outputs else loss

    def _get_num_items_in_batch(self, batch_samples, device):
        """What a step's loss is a mean over: pairs."""
        return sum(len(batch["pairs"]) for batch in batch_samples)

    def log(self, logs, *args, **kwargs):
        """Add the figures of the pairs since the last log, and how many they were."""
        if "loss" in logs and self._seen:
            figures, self._seen = torch.cat(self._seen), []
            logs |= _means(figures) | {"pairs": len(figures)}
        super().log(logs, *args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        """Loss and figures of a batch of held-out pairs."""
        with torch.no_grad():
            losses, figures = self.pair_figures(self._prepare_inputs(inputs))
        self._evaluated.append(figures)
        return losses.mean(), None, None

    def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
        """Means over pairs; ``measured`` has all figures as ``Scores`` takes them."""
        self._evaluated = []
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        figures, self._evaluated = torch.cat(self._evaluated).cpu(), []
        output.metrics.update(
            {f"{metric_key_prefix}_{name}": value for name, value in _means(figures).items()}
        )
        output.metrics[f"{metric_key_prefix}_loss"] = figures[:, 0].mean().item()
        self.measured = pair_scores(figures)
        return output

    def scores_on(self, rows: PairRows) -> Scores:
        """Score pairs as the model stands, without a line in any log."""
        self.evaluation_loop(self.get_eval_dataloader(rows), "scoring pairs", prediction_loss_only=True)
        return Scores(**self.measured)

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        torch.save(self.reference, Path(output_dir) / REFERENCE_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint and (Path(checkpoint) / REFERENCE_FILE).is_file():
            self.reference |= torch.load(Path(checkpoint) / REFERENCE_FILE)


def _means(figures: torch.Tensor) -> dict[str, float]:
    """Means of the figures of pairs, under TRL's names."""
    _, chosen, rejected, chosen_logp, rejected_logp = figures.T
    return {
        "rewards/chosen": chosen.mean().item(),
        "rewards/rejected": rejected.mean().item(),
        "rewards/margins": (chosen - rejected).mean().item(),
        "rewards/accuracies": pair_accuracy(chosen, rejected).value,
        "logps/chosen": chosen_logp.mean().item(),
        "logps/rejected": rejected_logp.mean().item(),
    }


def pair_scores(figures: torch.Tensor) -> dict[str, Any]:
    """Figures of pairs, (pairs, 5) as ``PreferenceTrainer.pair_figures`` gives them, as the fields of ``Scores``."""
    losses, chosen, rejected, chosen_logp, rejected_logp = figures.T
    margins = chosen - rejected
    return {
        "loss": losses.mean().item(),
        "pairs": len(figures),
        "margin": margins.mean().item(),
        "margin_deviation": margins.std(correction=0).item(),
        "margins_above_0": pair_accuracy(chosen, rejected).right,
        "chosen_likelier": pair_accuracy(chosen_logp, rejected_logp).right,
    }
