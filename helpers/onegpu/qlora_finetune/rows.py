"""The rows of a run: read, tokenized, masked and packed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onegpu import data
from onegpu.packed_training import pack_lengths
from onegpu.preference_data import (
    NoPreferences,
    pairs_in,
    read_preferences,
    tokenize_pair_set,
)
from onegpu.preference_data.pair_sets import SHIPPED as SHIPPED_PAIRS
from onegpu.qlora_finetune.config import FinetuneConfig
from onegpu.qlora_finetune.preferences import PairRows
from onegpu.qlora_finetune.tasks import PAIRS, Task, task_of
from onegpu.qlora_finetune.trainer import PackedRows
from onegpu.sft_datasets import TokenizedSet, cache, read_rows, tokenize_rows
from onegpu.sft_datasets.templates import template_text
from onegpu.sft_datasets.tokenized import FlatExamples
from onegpu.token_counting import TokenCounts, TrainingSteps, training_steps

SPLIT_ROWS = 256
"""The most rows that are split off for evaluation where ``eval_rows`` doesn't say: a loss needs no more."""


@dataclass(frozen=True)
class TrainingData:
    """Training and held-out rows of a run, tokenized and packed.

    Attributes
    ----------
    train, held_out : TokenizedSet or None
        Tokenized examples; None where there are no held-out rows.
    train_rows, held_out_rows : PackedRows
        The same, packed.
    raw_held_out : list of dict
        Held-out rows as they were read, without those that can't become an example; of pairs one of each prompt first.
    tasks : list of Task
        For each of them what it is for, and so how an answer to it is scored.
    totals : TrainingSteps
        Steps, rows and padding of the run, from the lengths alone (``onegpu.token_counting``).
    steps : int
        Optimizer steps of the whole run, known before the first.
    config : FinetuneConfig
        The run's, with what follows from the rows filled in.
    reasons : tuple of str
        What was filled in, and why.
    notes : tuple of str
        What was split off or left out on purpose.
    bad_rows : tuple of (str, int, str)
        Source, number in it and what is wrong, of each row that was skipped, held-out ones too.
    system : str or None
        The system prompt that all training rows share.
    """

    train: TokenizedSet
    train_rows: PackedRows
    held_out: TokenizedSet | None
    held_out_rows: PackedRows | None
    raw_held_out: list[dict[str, Any]]
    tasks: list[Task]
    totals: TrainingSteps
    steps: int
    config: FinetuneConfig
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bad_rows: tuple[tuple[str, int, str], ...] = ()
    system: str | None = None

    def fingerprint(self) -> str:
        """Tell other rows from these: ids and labels of all examples, in their order."""
        digest = hashlib.sha256()
        for tokenized in (self.train, self.held_out):
            if tokenized is not None:
                digest.update(tokenized.examples.digest())
            digest.update(b"held out")
        return digest.hexdigest()[:32]

    def __str__(self) -> str:
        room = f"{len(self.train_rows)} rows, {self.train.tokens / len(self.train_rows):,.0f} tokens each on average"
        held = [f"held-out {self.held_out.unit}: {self.held_out}"] if self.held_out is not None else []
        return "\n".join(
            [str(self.train), *self.notes, *held, f"packed: {room}; {self.steps} optimizer steps"]
        )


@dataclass(frozen=True)
class Examples:
    """Rows of a config as they are tokenized, and the held-out ones also as they were read.

    Attributes
    ----------
    train, held_out, raw_held_out : list of dict
        Rows.
    task : Task
        Of the held-out rows.
    sources : tuple of (str, int)
        Of the training rows: each source and how many rows it has, in their order.
    """

    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    raw_held_out: list[dict[str, Any]]
    task: Task
    sources: tuple[tuple[str, int], ...] = ()


def prepare_data(
    config: FinetuneConfig,
    tokenizer: Any,
    stop_tokens: Sequence[str] = (),
    say: Callable[[str], None] = lambda line: None,
    positions: int | None = None,
) -> TrainingData:
    """Read, tokenize, mask and pack the rows of a config. Sets the tokenizer's chat template if the config names one.

    Parameters
    ----------
    config
        Its settings of rows are used.
    tokenizer
        A fast transformers tokenizer.
    stop_tokens
        Tokens at which the model stops, besides the tokenizer's end token.
    say
        Gets a line for each source whose prepared rows are in the cache, or go there.
    positions
        Of the model: the most tokens that it reads. None: not known.

    Raises
    ------
    ValueError
        For rows that can't be trained on, with row number and what to do.
    """
    check_held_out(config)
    use_template(tokenizer, config.template)
    options = row_options(config, stop_tokens)
    held_source = held_out_source(config)

    def read() -> tuple[list[_Part], list[_Part]]:
        held = () if held_source is None else sources_of(held_source)
        return (
            [_Part.read(source, config, tokenizer, options, say) for source in sources_of(config.data)],
            [_Part.read(source, config, tokenizer, options, say, "heldout") for source in held],
        )

    parts, held_parts = read()
    reasons: list[str] = []
    if config.max_length is None:
        longest = max(part.tokenized.longest for part in parts)
        config, why = config.filled(longest=longest, positions=positions)
        reasons += why
        if max(part.tokenized.longest for part in (*parts, *held_parts)) > config.max_length:
            parts, held_parts = read()
    notes: list[str] = []
    if held_source is None:
        held_parts = _split_off(parts, config, notes)
    if config.data_shares is not None:
        _take_shares(parts, config, notes)
    train = join([part.tokenized for part in parts])
    _check_ends(train, tokenizer, stop_tokens)
    held = join([part.tokenized for part in held_parts]) if held_parts else None
    raw = [(row, part.task) for part in held_parts for row in part.raw()]
    bad = tuple((part.source, *row) for part in [*parts, *held_parts] for row in part.tokenized.bad_rows)
    config, why = config.filled(rows=len(train))
    reasons += why
    totals = training_steps(
        token_counts(train), max_length=config.max_length, num_train_epochs=max(config.num_train_epochs, 1e-9),
        per_device_train_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
    )  # fmt: skip
    steps = totals.packed_steps if config.packing else totals.padded_steps
    if config.max_steps > 0:
        steps = config.max_steps
    held_rows = None if held is None else _pack(held, config, first=len(train))
    if config.early_stopping_patience is not None and held is None:
        raise ValueError(NO_HELD_OUT)
    return TrainingData(
        train, _pack(train, config), held, held_rows, [row for row, _ in raw], [task for _, task in raw], totals, steps,
        config, tuple(reasons), tuple(notes), bad, only(train.systems),
    )  # fmt: skip


def only(found: Iterable[str | None]) -> str | None:
    """The one text that all of them are, else None."""
    texts = set(found)
    return texts.pop() if len(texts) == 1 else None


def check_held_out(config: FinetuneConfig) -> None:
    """See that early stopping has rows to look at, as far as that can be known before any is read.

    Raises
    ------
    ValueError
        If none can be there.
    """
    if config.early_stopping_patience is None or held_out_source(config) is not None or config.eval_share:
        return
    raise ValueError(NO_HELD_OUT)


NO_HELD_OUT = (
    "early_stopping_patience needs held-out rows, found none: set eval_data, or eval_share above 0 (with enough rows to "
    "split)"
)


def sources_of(data: str | Sequence[str]) -> tuple[str, ...]:
    """The sources of a config's ``data`` or ``eval_data``, one or several."""
    return (data,) if isinstance(data, str) else tuple(data)


def row_options(config: FinetuneConfig, stop_tokens: Sequence[str] = ()) -> dict[str, Any]:
    """The config's settings of rows, as ``tokenize_rows`` takes them."""
    return {
        "template": "model",  # the tokenizer has the config's by now
        "turns": config.turns, "truncation": config.truncation, "bad_rows": config.bad_rows, "repairs": config.repairs,
        "stop_tokens": tuple(stop_tokens),
    }  # fmt: skip


def use_template(tokenizer: Any, template: str) -> None:
    """Give a tokenizer the chat template that it is trained with, so that it is evaluated and saved with it."""
    if template != "model":
        tokenizer.chat_template = template_text(tokenizer, template)


@dataclass
class _Part:
    """The rows of one source, tokenized."""

    source: str
    task: Task
    split: str
    columns: dict[str, str] | None
    limit: int | None
    tokenized: TokenizedSet | None = None
    chosen: frozenset[int] | None = None

    @classmethod
    def read(cls, source, config, tokenizer, options, say, split="train") -> _Part:
        """Read and tokenize a source, or take it from the cache."""
        task = task_of(source, config.method)
        limit = config.eval_rows if split == "heldout" else None

        part = cls(source, task, split, config.columns, limit)

        def make(lay) -> TokenizedSet:
            if task is PAIRS:
                return tokenize_pair_set(
                    part.rows(), tokenizer, config.max_length, truncation=config.truncation, bad_rows=config.bad_rows,
                    stop_tokens=options["stop_tokens"], lay=lay,
                )  # fmt: skip
            chats = map(task.to_row, _chats(part.rows()))
            return tokenize_rows(chats, tokenizer, config.max_length, progress=True, lay=lay, **options)

        settings = options | {
            "max_length": config.max_length, "columns": config.columns, "limit": limit, "method": config.method,
        }  # fmt: skip
        try:
            entry = cache.place(source, "train", tokenizer, settings) if config.cache_rows else None
            part.tokenized = make(FlatExamples.of) if entry is None else cache.read_or_make(entry, make, say)
        except NoPreferences as error:
            raise ValueError(
                f"{source}, {error} Rows of chats are for method='sft' (command line: without --method dpo)"
            ) from error
        except NoChat as error:
            raise ValueError(f"{source}, {error}") from error
        except ValueError as error:
            if not isinstance(config.data, str) or split == "heldout" or task is PAIRS:
                raise ValueError(f"{source}: {error}") from error
            raise
        return part

    def rows(self) -> Iterator[Any]:
        """The rows as they are read."""
        read = read_preferences if self.task is PAIRS else read_source
        return read(self.source, split=self.split, columns=self.columns, limit=self.limit)

    def raw(self) -> list[dict[str, Any]]:
        """The rows as they were read, or the pairs in them (of a split, those chosen); without those that can't be used."""
        rows, bad = self.rows(), {number for number, _ in self.tokenized.bad_rows}
        if self.task is PAIRS:
            rows = (None if pair is None else vars(pair) for _, pair, _ in pairs_in(rows))
            bad = set()
        found = [
            row
            for number, row in enumerate(rows)
            if row is not None and (number not in bad if self.chosen is None else number in self.chosen)
        ]
        return new_prompts_first(found) if self.task is PAIRS else found


def new_prompts_first(pairs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the first pair of each prompt before all others, so that the first few ask different questions.

    Examples
    --------
    >>> [pair["chosen"] for pair in new_prompts_first([{"prompt": p, "chosen": i} for i, p in enumerate("aab")])]
    [0, 2, 1]
    """
    first: dict[str, dict[str, Any]] = {}
    again = [pair for pair in pairs if first.setdefault(pair["prompt"], pair) is not pair]
    return [*first.values(), *again]


class NoChat(ValueError):
    """A row of preferences where chats were expected."""


def holds_preferences(source: str) -> bool:
    """Whether the first row of a source is one of preferences, a pair or a ranking.

    Examples
    --------
    >>> holds_preferences("rankings"), holds_preferences("support_triage")
    (True, False)
    """
    return any(_is_preference(row) for row in read_source(source, limit=1))


def _chats(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows):
        if _is_preference(row):
            raise NoChat(
                f"row {number}: found a row of preferences, expected a chat. Set method='dpo' (command line: --method dpo)"
            )
        yield row


def _is_preference(row: dict[str, Any]) -> bool:
    """Whether a row is a pair or a ranking, and nothing that could be learned as a chat."""
    has = {key for key, value in row.items() if value is not None}
    return bool(has & {"chosen", "rejected"} or has >= {"answers", "ranks"}) and not has & {
        "messages", "conversations", "completion", "output", "reply",
    }  # fmt: skip


def read_source(source, split="train", columns=None, limit=None) -> Iterator[dict[str, Any]]:
    """Read a source; the held-out split is that of shipped sets, other sources are read whole."""
    named = source in data.names()
    return read_rows(source, columns=columns, limit=limit, split=split if named else "train")


def held_out_source(config: FinetuneConfig) -> str | tuple[str, ...] | None:
    """Where a config's held-out rows are; None if none are named and its shipped data have none."""
    if config.eval_data is not None:
        return config.eval_data
    shipped = [s for s in sources_of(config.data) if _has_held_out(s, config.method)]
    return tuple(shipped) if shipped else None


def _has_held_out(source: str, method: str) -> bool:
    if method == "dpo":
        return source == SHIPPED_PAIRS
    return source in data.names() and "heldout" in data.splits(source)


def choose_held_out(
    rows: Sequence[tuple[int, int, int]], config: FinetuneConfig, notes: list[str], unit: str = "rows"
) -> set[tuple[int, int]]:
    """Choose a share of the rows to hold out, all that have the same question together.

    The choice hangs on the questions and the seed alone.

    Parameters
    ----------
    rows
        (number of the question, source, number in it) of each row that can be trained on.
    config
        ``eval_share``, ``eval_rows`` and ``seed``.
    notes
        Gets a line on what was held out.
    unit
        What a row is called in it.

    Returns
    -------
    set
        (source, number in it); empty where there are too few rows.
    """
    wanted = min(int(config.eval_share * len(rows)), config.eval_rows or SPLIT_ROWS)
    groups: dict[int, list[tuple[int, int]]] = {}
    for key, at, number in rows:
        groups.setdefault(key, []).append((at, number))

    def order(key: int) -> bytes:
        return hashlib.blake2b(f"{config.seed} {key % 2**64}".encode(), digest_size=8).digest()

    chosen: set[tuple[int, int]] = set()
    for key in sorted(groups, key=order) if wanted else ():
        if len(chosen) + len(groups[key]) <= wanted:
            chosen.update(groups[key])
        if len(chosen) == wanted:
            break
    if not chosen or len(chosen) == len(rows):
        return set()
    notes.append(
        f"held out: {len(chosen):,} of {len(rows):,} {unit}, split off by their questions (eval_share "
        f"{config.eval_share}, seed {config.seed})"
    )
    return chosen


def _split_off(parts: list[_Part], config: FinetuneConfig, notes: list[str]) -> list[_Part]:
    """Take the rows to hold out from the parts, as parts of their own."""
    examples = [part.tokenized.examples for part in parts]
    rows = [
        (question, at, number)
        for at, flat in enumerate(examples)
        for question, number in zip(flat.questions.tolist(), flat.rows.tolist(), strict=True)
    ]
    chosen = choose_held_out(rows, config, notes, parts[0].tokenized.unit)
    held = []
    for at, part in enumerate(parts):
        numbers = frozenset(number for where, number in chosen if where == at)
        if numbers:
            inside = np.isin(part.tokenized.examples.rows, list(numbers))
            clean = {
                "dropped": {},
                "truncated": (),
                "lost_tokens": 0,
                "lost_supervised_tokens": 0,
                "bad_rows": (),
            }
            held.append(
                dataclasses.replace(
                    part,
                    tokenized=part.tokenized.take(np.flatnonzero(inside), len(numbers), **clean),
                    chosen=numbers,
                )
            )
            part.tokenized = part.tokenized.take(np.flatnonzero(~inside), part.tokenized.rows - len(numbers))
    return held


def _take_shares(parts: list[_Part], config: FinetuneConfig, notes: list[str]) -> None:
    """Take of each source as many rows as give the shares wanted, without repeating one."""
    sizes = [(part.source, len(part.tokenized)) for part in parts]
    for part, kept in zip(parts, choose_shares(sizes, config, notes, parts[0].tokenized.unit), strict=True):
        part.tokenized = part.tokenized.take(kept, part.tokenized.rows)


def choose_shares(
    sizes: Sequence[tuple[str, int]], config: FinetuneConfig, notes: list[str], unit: str = "rows"
) -> list[np.ndarray]:
    """Choose what ``data_shares`` takes of each source, given their names and sizes: sorted places, one array a source."""
    total = min(there / share for (_, there), share in zip(sizes, config.data_shares, strict=True))
    random = np.random.default_rng(config.seed)
    chosen = []
    for (source, there), share in zip(sizes, config.data_shares, strict=True):
        wanted = max(1, int(total * share + 1e-9))
        chosen.append(np.sort(random.permutation(there)[:wanted]))
        notes.append(f"{source}: {wanted:,} of {there:,} {unit}, for a share of {share:.1%}")
    return chosen


def join(sets: Sequence[TokenizedSet]) -> TokenizedSet:
    """Put tokenized sets one after the other; row numbers go on from one to the next."""
    return sets[0] if len(sets) == 1 else TokenizedSet.join(sets)


def _check_ends(train: TokenizedSet, tokenizer: Any, stop_tokens: Sequence[str]) -> None:
    """Answers must end in ids that stop generation: those known, or one more, which is made known."""
    known = {tokenizer.eos_token, *stop_tokens}
    new = [token for token in tokenizer.convert_ids_to_tokens(list(train.end_ids)) if token not in known]
    if len(new) > 1:
        raise ValueError(
            f"answers end in different tokens ({', '.join(map(repr, new))}), and generation can't stop at all of them: set "
            "turns='last', or another template"
        )


def read_examples(config: FinetuneConfig) -> Examples:
    """Read the training and held-out rows of a config as they are (nothing is split off)."""
    source = held_out_source(config)
    raw = _read_held_out(config)
    parts = [
        (name, [task_of(name, config.method).to_row(row) for row in _read_units(name, config)])
        for name in sources_of(config.data)
    ]
    train = [row for _, rows in parts for row in rows]
    task = task_of(sources_of(source or config.data)[0], config.method)
    sources = tuple((name, len(rows)) for name, rows in parts)
    return Examples(train, [t.to_row(row) for t, row in raw], [row for _, row in raw], task, sources)


def _read_units(source, config, split="train", limit=None) -> Iterator[dict[str, Any]]:
    """Rows as they were read, or the pairs in them."""
    if config.method != "dpo":
        yield from read_source(source, split, config.columns, limit)
        return
    for _, pair, error in pairs_in(
        read_preferences(source, split=split, columns=config.columns, limit=limit)
    ):
        if error is None:
            yield vars(pair)
        elif config.bad_rows == "stop":
            raise ValueError(f"{source}: {error}") from error


def read_held_out(config: FinetuneConfig) -> list[dict[str, Any]]:
    """Read the held-out rows that a config names, as they are tokenized; none where a share would be split off."""
    return [task.to_row(row) for task, row in _read_held_out(config)]


def _read_held_out(config: FinetuneConfig) -> list[tuple[Task, dict[str, Any]]]:
    return [
        (task_of(name, config.method), row)
        for name in sources_of(held_out_source(config) or ())
        for row in _read_units(name, config, "heldout", config.eval_rows)
    ]


def prepare_held_out(
    rows: Sequence[dict[str, Any]], config: FinetuneConfig, tokenizer: Any
) -> tuple[TokenizedSet | None, PackedRows | None]:
    """Tokenize and pack held-out rows, as they are tokenized (``Examples.held_out``); (None, None) where there are none."""
    if not rows:
        return None, None
    use_template(tokenizer, config.template)
    held = tokenize_rows(rows, tokenizer, config.max_length, **row_options(config))
    return held, _pack(held, config)


def token_counts(tokenized: TokenizedSet) -> TokenCounts:
    """Count a tokenized set, as ``onegpu tokens`` counts a file."""
    lengths = Counter(tokenized.lengths.tolist())
    masked = tokenized.tokens - tokenized.supervised_tokens
    return TokenCounts(
        len(tokenized), tokenized.tokens, tokenized.supervised_tokens, masked, dict(sorted(lengths.items()))
    )


class _AsLists(Sequence[dict[str, list[int]]]):
    """Tokenized examples as the collator wants them, each made when it is asked for."""

    def __init__(self, tokenized: TokenizedSet):
        self.examples = tokenized.examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index):
        example = self.examples[index]
        return {"input_ids": list(example.input_ids), "labels": list(example.labels)}


def _pack(tokenized: TokenizedSet, config: FinetuneConfig, first: int = 0) -> PackedRows:
    if config.packing:
        rows = pack_lengths(tokenized.lengths, config.max_length).rows
    else:
        rows = [[i] for i in range(len(tokenized))]
    return (
        PairRows(tokenized, rows, first) if config.method == "dpo" else PackedRows(_AsLists(tokenized), rows)
    )
