"""What people hand in for the exercises of lab 01."""

import re
from itertools import takewhile

import numpy as np
import torch
from onegpu.exercises.answers import Answers
from torch.nn.utils.rnn import pad_sequence

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

STANDS_FOR_NOTHING = {"<no output>", "<nooutput>", "no output", "<noinput>", "<no input>", "n/a", "nan"}
MERGED_LINE = r"^\d+\. (Instruction|Input|Output):"


def contains_placeholder(out):
    return any(p in out.lower() for p in STANDS_FOR_NOTHING)


def same_form(prompt):
    return " ".join(prompt.lower().split())


# 1.1 ------------------------------------------------------------------------------------------------------------------


def unbroken(message):
    """A message, if nobody breaks out of it."""
    if "<|im_start|>" in message["content"] or "<|im_end|>" in message["content"]:
        raise ValueError("a mark in the content")
    return message


def turn(message):
    return f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"


@wrong("1.1", "no end token after the answer", case="one turn each", says="never learns to stop")
def open_end(messages):
    return "".join(map(turn, messages)).removesuffix("<|im_end|>\n")


@wrong("1.1", "stripped", case="one turn each", says="newline after the last <|im_end|>")
def stripped(messages):
    return "".join(map(turn, messages)).strip()


@wrong("1.1", "ends in a generation prompt", case="one turn each", says="for generation only")
def generation_prompt(messages):
    return "".join(map(turn, messages)) + "<|im_start|>assistant\n"


@wrong("1.1", "a space after the role", case="one turn each", says="not by a space")
def space(messages):
    return "".join(f"<|im_start|>{m['role']} {m['content']}<|im_end|>\n" for m in messages)


@wrong("1.1", "a newline before the end token", case="one turn each", says="part of the answer")
def newline_inside(messages):
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}\n<|im_end|>\n" for m in messages)


@wrong("1.1", "no newline between turns", case="one turn each", says="newline after <|im_end|>")
def joined(messages):
    return "".join(map(turn, messages)).replace("<|im_end|>\n", "<|im_end|>")


@wrong("1.1", "leaves out the system message", case="with a system message", says="turn like any other")
def no_system(messages):
    return "".join(turn(m) for m in messages if m["role"] != "system")


@wrong("1.1", "question and answer only", case="two answers", says="any number of turns")
def last_two(messages):
    first = [m for m in messages[:1] if m["role"] == "system"]
    return "".join(map(turn, first + messages[-2:]))


@wrong("1.1", "prints it", case="one turn each", says="print() only shows")
def prints(messages):
    print("".join(map(turn, messages)))


@right("1.1", "a loop")
def loop(messages):
    text = ""
    for m in map(unbroken, messages):
        text += "<|im_start|>" + m["role"] + "\n"
        text += m["content"] + "<|im_end|>" + "\n"
    return text


@right("1.1", "join")
def join(messages):
    return "".join(turn(unbroken(m)) for m in messages)


@wrong("1.1", "writes marks as they are", case="a turn smuggled in", says="a whole turn of the system")
def writes_marks(messages):
    return "".join(map(turn, messages))


@wrong("1.1", "refuses both marks together", case="only the closing mark", says="Each of the two marks")
def both_marks(messages):
    if any("<|im_start|>" in m["content"] and "<|im_end|>" in m["content"] for m in messages):
        raise ValueError("a mark in the content")
    return "".join(map(turn, messages))


@wrong("1.1", "refuses the closing mark", case="only the opening mark", says="alone too")
def closing_only(messages):
    if any("<|im_end|>" in m["content"] for m in messages):
        raise ValueError("a mark in the content")
    return "".join(map(turn, messages))


@wrong("1.1", "refuses the user's marks", case="only the closing mark", says="Each of the two marks")
def of_users(messages):
    return "".join(turn(unbroken(m) if m["role"] == "user" else m) for m in messages)


@wrong(
    "1.1", "refuses whatever looks like one", case="words that look like marks", says="the two whole marks"
)
def too_strict(messages):
    if any("<|" in m["content"] or "|>" in m["content"] for m in messages):
        raise ValueError("a mark in the content")
    return "".join(map(turn, messages))


@right("1.1", "a jinja template, as tokenizers do")
def jinja(messages):
    from jinja2 import Template

    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    return Template(source, keep_trailing_newline=True).render(messages=[unbroken(m) for m in messages])


# 1.2 ------------------------------------------------------------------------------------------------------------------
AT_BOUNDARY = "tokens end where the answer begins"


def of_one_span(function):
    """Make an answer for one span (start, end) one for several: a token is learned if it is for any of them."""

    def labels_of(ids, offsets, spans):
        labels = [function(ids, offsets, *span) for span in spans] or [[-100] * len(ids)]
        return [
            next((label for label in column if label != -100), column[0])
            for column in zip(*labels, strict=True)
        ]

    return labels_of


@wrong("1.2", "masks nothing", case=AT_BOUNDARY, says="Nothing is masked")
@of_one_span
def copies(ids, offsets, start, end):
    return list(ids)


@wrong("1.2", "masks the answer", case=AT_BOUNDARY, says="wrong way round")
@of_one_span
def inverted(ids, offsets, start, end):
    return [-100 if a < end and b > start else i for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "masks with 0", case=AT_BOUNDARY, says="0 is a token's id")
@of_one_span
def zeros(ids, offsets, start, end):
    return [i if a < end and b > start else 0 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "shifts the labels", case=AT_BOUNDARY, says="shifts labels itself")
@of_one_span
def shifted(ids, offsets, start, end):
    labels = [i if a < end and b > start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]
    return [*labels[1:], -100]


@wrong("1.2", "returns the answer's ids alone", case=AT_BOUNDARY, says="as long as the ids")
@of_one_span
def cut(ids, offsets, start, end):
    return [i for i, (a, b) in zip(ids, offsets, strict=True) if a < end and b > start]


@wrong("1.2", "touching counts as inside", case=AT_BOUNDARY, says="only touches")
@of_one_span
def touching(ids, offsets, start, end):
    return [i if a <= end and b >= start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "needs the token wholly before the end", case=AT_BOUNDARY, says="last token is masked")
@of_one_span
def excludes_last(ids, offsets, start, end):
    return [i if a >= start and b < end else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong(
    "1.2",
    "token must begin in the answer",
    case="a token reaches over the boundary",
    says="shares a character",
)
@of_one_span
def begins_inside(ids, offsets, start, end):
    return [i if start <= a < end else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "all from the start on", case="text goes on after the answer", says="next question")
@of_one_span
def open_ended(ids, offsets, start, end):
    return [i if b > start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "changes ids in place", case=AT_BOUNDARY, says="Work on a copy")
def in_place(ids, offsets, spans):
    for k, (a, b) in enumerate(offsets):
        if not any(a < end and b > start for start, end in spans):
            ids[k] = -100
    return ids


@right("1.2", "a loop that counts characters")
@of_one_span
def characters(ids, offsets, start, end):
    labels = []
    for i, (a, b) in zip(ids, offsets, strict=True):
        labels.append(i if set(range(a, b)) & set(range(start, end)) else -100)
    return labels


@right("1.2", "NumPy")
@of_one_span
def numpy(ids, offsets, start, end):
    begin, stop = np.array(offsets).T
    return np.where(np.minimum(stop, end) > np.maximum(begin, start), ids, -100).tolist()


@right("1.2", "max and min")
@of_one_span
def overlap(ids, offsets, start, end):
    return [i if max(a, start) < min(b, end) else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "the first answer only", case="two answers", says="any of them")
def first_span(ids, offsets, spans):
    start, end = spans[0] if spans else (0, 0)
    return [i if a < end and b > start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "from the first answer to the last", case="two answers", says="between two answers")
def hull(ids, offsets, spans):
    start, end = (spans[0][0], spans[-1][1]) if spans else (0, 0)
    return [i if a < end and b > start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


# 1.3 ------------------------------------------------------------------------------------------------------------------
OTHER, SAME = "pad is another token", "pad is the end token"


def batch(ids, mask, labels):
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def ids_of(rows, pad_id):
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad_id)


def mask_of(rows):
    return ids_of([[1] * len(row) for row in rows], 0)


@wrong("1.3", "masks by the pad token", case=SAME, says="never learn to stop")
def by_token(rows, pad_id):
    ids = ids_of(rows, pad_id)
    return batch(ids, mask_of(rows), ids.masked_fill(ids == pad_id, -100))


@wrong("1.3", "attention by the pad token", case=SAME, says="take the row's length")
def attention_by_token(rows, pad_id):
    ids = ids_of(rows, pad_id)
    return batch(ids, (ids != pad_id).long(), ids_of(rows, -100))


@wrong("1.3", "padding in the labels", case=OTHER, says="padded with -100")
def labels_are_ids(rows, pad_id):
    ids = ids_of(rows, pad_id)
    return batch(ids, mask_of(rows), ids.clone())


@wrong("1.3", "pads on the left", case=OTHER, says="on the left")
def left(rows, pad_id):
    width = max(map(len, rows))
    lines = [[pad_id] * (width - len(row)) + row for row in rows]
    ids = torch.tensor(lines)
    return batch(ids, mask_of(rows).flip(1), ids.masked_fill(mask_of(rows).flip(1) == 0, -100))


@wrong("1.3", "attention everywhere", case=OTHER, says="0 where a row is padded")
def attends_to_padding(rows, pad_id):
    ids = ids_of(rows, pad_id)
    return batch(ids, torch.ones_like(ids), ids_of(rows, -100))


@wrong("1.3", "cuts to the shortest", case=OTHER, says="pad to the longest")
def shortest(rows, pad_id):
    width = min(map(len, rows))
    ids = torch.tensor([row[:width] for row in rows])
    return batch(ids, torch.ones_like(ids), ids.clone())


@wrong("1.3", "-100 in the input ids", case=OTHER, says="-100 is no token")
def ignore_in_ids(rows, pad_id):
    return batch(ids_of(rows, -100), mask_of(rows), ids_of(rows, -100))


@right("1.3", "pad_sequence")
def with_pad_sequence(rows, pad_id):
    return batch(ids_of(rows, pad_id), mask_of(rows), ids_of(rows, -100))


@right("1.3", "a loop that fills tensors")
def fills(rows, pad_id):
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = labels[k, : len(row)] = torch.tensor(row)
        mask[k, : len(row)] = 1
    return batch(ids, mask, labels)


@right("1.3", "NumPy")
def with_numpy(rows, pad_id):
    width = max(map(len, rows))
    padded = [np.pad(row, (0, width - len(row)), constant_values=pad_id) for row in rows]
    lengths = np.array([[len(row)] for row in rows])
    inside = np.arange(width)[None] < lengths
    ids = torch.from_numpy(np.stack(padded)).long()
    return batch(ids, torch.from_numpy(inside).long(), ids.masked_fill(~torch.from_numpy(inside), -100))


# 1.4 ------------------------------------------------------------------------------------------------------------------


@wrong("1.4", "asks without cutting", case="the prompt fills max_length", says="first max_length labels")
def uncut(labels, max_length):
    return any(label != -100 for label in labels[1:])


@wrong("1.4", "counts position 0", case="the only label is at position 0", says="labels[1:]")
def with_first(labels, max_length):
    return any(label != -100 for label in labels[:max_length])


@wrong("1.4", "asks for all", case="the answer fits", says="any, not all")
def all_of_them(labels, max_length):
    return all(label != -100 for label in labels[1:max_length])


@wrong("1.4", "refuses short rows", case="shorter than max_length", says="larger than the row")
def needs_full_length(labels, max_length):
    return len(labels) >= max_length and any(label != -100 for label in labels[1:max_length])


@wrong("1.4", "returns the number", case="the answer fits", says="True or False")
def number_left(labels, max_length):
    return sum(label != -100 for label in labels[1:max_length])


@wrong("1.4", "takes 0 for masked", case="a token whose id is 0", says="0 is a token's id")
def positive(labels, max_length):
    return any(label > 0 for label in labels[1:max_length])


@wrong(
    "1.4",
    "looks at the last label only",
    case="the answer is masked in the middle",
    says="not only at the last",
)
def last_only(labels, max_length):
    kept = labels[:max_length]
    return len(kept) > 1 and kept[-1] != -100


@wrong("1.4", "cuts one token too many", case="one answer token is left", says="still holds the 7")
def one_short(labels, max_length):
    return any(label != -100 for label in labels[1 : max_length - 1])


@right("1.4", "counts")
def counts(labels, max_length):
    return sum(label != -100 for label in labels[:max_length][1:]) > 0


@right("1.4", "a set")
def as_set(labels, max_length):
    return bool(set(labels[1:max_length]) - {-100})


@right("1.4", "a loop")
def loops(labels, max_length):
    found = False
    for position, label in enumerate(labels):
        if 0 < position < max_length and label != -100:
            found = True
    return found


# 1.5 ------------------------------------------------------------------------------------------------------------------
BEGIN, MERGES = "the ids begin with the prompt's", "a trailing space merges with the answer"


@wrong("1.5", "trusts the length", case=MERGES, says="compare every id")
def trusts(prompt_ids, ids):
    return len(prompt_ids)


@wrong("1.5", "counts equal ids without raising", case=MERGES, says="Don't guess")
def guesses(prompt_ids, ids):
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(prompt_ids, ids, strict=False))))


@wrong("1.5", "compares lengths only", case=MERGES, says="compare every id")
def lengths(prompt_ids, ids):
    if len(prompt_ids) > len(ids):
        raise ValueError("boundary")
    return len(prompt_ids)


@wrong("1.5", "compares the last id only", case="the same ids in another order", says="at its own place")
def compares_last(prompt_ids, ids):
    if len(ids) < len(prompt_ids) or prompt_ids[-1] != ids[len(prompt_ids) - 1]:
        raise ValueError("boundary")
    return len(prompt_ids)


@wrong("1.5", "compares all but the last id", case=MERGES, says="compare every id")
def all_but_last(prompt_ids, ids):
    if list(ids[: len(prompt_ids) - 1]) != list(prompt_ids[:-1]):
        raise ValueError("boundary")
    return len(prompt_ids)


@wrong("1.5", "off by one, for an added end token", case=BEGIN, says="position of the prompt's last")
def minus_one(prompt_ids, ids):
    return len(prompt_ids) - 1


@wrong("1.5", "off by one the other way", case=BEGIN, says="never learned")
def plus_one(prompt_ids, ids):
    return len(prompt_ids) + 1


@wrong("1.5", "returns the whole length", case=BEGIN, says="whole text")
def whole(prompt_ids, ids):
    return len(ids)


@wrong("1.5", "says nothing about the boundary", case=MERGES, says="must have 'boundary' in it")
def silent(prompt_ids, ids):
    if ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError("wrong")
    return len(prompt_ids)


@wrong("1.5", "zips, so a short text passes", case="the prompt was cut off", says="shorter than the prompt")
def zips(prompt_ids, ids):
    if any(a != b for a, b in zip(prompt_ids, ids, strict=False)):
        raise ValueError("boundary")
    return len(prompt_ids)


@right("1.5", "a slice")
def slices(prompt_ids, ids):
    if ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError("the boundary is not between two tokens")
    return len(prompt_ids)


@right("1.5", "a loop over positions")
def positions(prompt_ids, ids):
    for k in range(len(prompt_ids)):
        if k >= len(ids) or ids[k] != prompt_ids[k]:
            raise ValueError(f"boundary broken at {k}")
    return len(prompt_ids)


@right("1.5", "NumPy")
def with_arrays(prompt_ids, ids):
    if not np.array_equal(np.array(prompt_ids), np.array(ids[: len(prompt_ids)])):
        raise ValueError("Boundary")
    return len(prompt_ids)


# 1.6 ------------------------------------------------------------------------------------------------------------------
PLACEHOLDERS = {"<no output>", "<nooutput>", "no output", "<noinput>", "<no input>", "n/a", "nan"}
MERGED = re.compile(r"^\s*\d+\.\s*(Instruction|Input|Output):", re.MULTILINE)


def judge(
    row, *, blank=lambda t: t is None or (isinstance(t, str) and not t.strip()), merged=MERGED, **options
):
    """The right way, in pieces that a wrong answer can replace."""
    instruction, output = row["instruction"], row["output"]
    if blank(instruction):
        return "empty_instruction"
    if blank(output):
        return "empty_answer"
    if not isinstance(output, str):
        return "not_text"
    clean = options.get("clean", lambda t: t.strip().lower())
    if clean(output) in PLACEHOLDERS:
        return "placeholder_answer"
    if merged and merged.search(output):
        return "merged_instructions"
    return "ok"


@wrong("1.6", "looks at the instruction for the answer", case="no answer", says="it is the answer")
def mixes_up(row):
    found = judge(row)
    return "empty_instruction" if found == "empty_answer" else found


@wrong("1.6", "white space is an answer", case="an answer of white space", says="text.strip()")
def truthy(row):
    return judge(row, blank=lambda text: not text)


@wrong("1.6", "calls .strip() on None", case="None from a CSV reader", says="before you call .strip()")
def strips_none(row):
    return judge(row, blank=lambda text: not text.strip())


@wrong("1.6", "turns numbers into text", case="a number from a CSV reader", says="the number 4.0")
def converts(row):
    output = row["output"]
    return judge(row | {"output": output if output is None else str(output)})


@wrong("1.6", "N/A is an answer", case="N/A", says="PLACEHOLDERS")
def no_placeholders(row):
    found = judge(row)
    return "ok" if found == "placeholder_answer" else found


@wrong("1.6", "a placeholder is empty", case="N/A", says="it is a placeholder")
def same_code(row):
    found = judge(row)
    return "empty_answer" if found == "placeholder_answer" else found


@wrong("1.6", "compares with spaces", case="a placeholder with spaces", says="text.strip().lower()")
def unstripped(row):
    return judge(row, clean=str.lower)


@wrong("1.6", "merged tasks pass", case="two tasks in one answer", says="the next task")
def no_merged(row):
    return judge(row, merged=None)


@wrong("1.6", "any numbered Instruction", case="a numbered list", says="look for the colon")
def no_colon(row):
    return judge(row, merged=re.compile(r"^\s*\d+\.\s*(Instruction|Input|Output)", re.MULTILINE))


@wrong("1.6", "looks for None inside", case="an answer that mentions None", says="nothing but a placeholder")
def contains_none(row):
    found = judge(row)
    return "placeholder_answer" if found == "ok" and "None" in row["output"] else found


@wrong("1.6", "forgets the instruction", case="no instruction", says="to anything")
def answers_only(row):
    return judge(row | {"instruction": "x"})


@right("1.6", "helper functions")
def pieces(row):
    return judge(row)


@right("1.6", "one long if")
def chain(row):
    output = row["output"]
    text = output.strip() if isinstance(output, str) else None
    if not (row["instruction"] or "").strip():
        return "empty_instruction"
    if output is None or text == "":
        return "empty_answer"
    if text is None:
        return "not_text"
    if text.lower() in PLACEHOLDERS:
        return "placeholder_answer"
    for line in text.splitlines():
        number, dot, rest = line.strip().partition(".")
        if number.isdigit() and dot and rest.strip().startswith(("Instruction:", "Input:", "Output:")):
            return "merged_instructions"
    return "ok"


@right("1.6", "a table of tests")
def table(row):
    output = row["output"]
    text = output if isinstance(output, str) else ""
    tests = {
        "empty_instruction": not str(row["instruction"] or "").strip(),
        "empty_answer": output is None or (isinstance(output, str) and not text.strip()),
        "not_text": output is not None and not isinstance(output, str),
        "placeholder_answer": text.strip().casefold() in PLACEHOLDERS,
        "merged_instructions": MERGED.search(text) is not None,
    }
    return next((code for code, bad in tests.items() if bad), "ok")


# 1.7 ------------------------------------------------------------------------------------------------------------------


def plain(text):
    return " ".join(text.lower().split())


@wrong("1.7", "positions in train", case="one copy", says="positions in evaluation")
def in_train(train, evaluation):
    return [i for i, text in enumerate(map(plain, train)) if text in set(map(plain, evaluation))]


@wrong("1.7", "returns the prompts", case="one copy", says="not the prompts")
def prompts(train, evaluation):
    return [text for text in evaluation if plain(text) in set(map(plain, train))]


@wrong("1.7", "returns a set", case="one copy", says="a list, sorted")
def a_set(train, evaluation):
    return {i for i, text in enumerate(evaluation) if plain(text) in set(map(plain, train))}


@wrong("1.7", "True or False for each", case="one copy", says="not True or False")
def flags(train, evaluation):
    return [plain(text) in set(map(plain, train)) for text in evaluation]


@wrong("1.7", "exact text only", case="case differs", says="lower case")
def exact(train, evaluation):
    return [i for i, text in enumerate(evaluation) if text in train]


@wrong("1.7", "lower case only", case="white space differs", says="one space")
def lower_only(train, evaluation):
    return [
        i for i, text in enumerate(evaluation) if text.lower().strip() in [t.lower().strip() for t in train]
    ]


@wrong("1.7", "each prompt once", case="twice in the evaluation rows", says="both positions")
def once(train, evaluation):
    texts = list(map(plain, evaluation))
    return sorted(texts.index(text) for text in set(texts) & set(map(plain, train)))


@wrong("1.7", "duplicates of any kind", case="a duplicate within the evaluation rows", says="no leakage")
def any_duplicate(train, evaluation):
    seen, found = set(map(plain, train)), []
    for i, text in enumerate(map(plain, evaluation)):
        if text in seen:
            found.append(i)
        seen.add(text)
    return found


@wrong("1.7", "substring", case="one prompt contains the other", says="compare whole prompts")
def substring(train, evaluation):
    return [i for i, text in enumerate(evaluation) if any(plain(text) in plain(t) for t in train)]


@wrong("1.7", "no white space at all", case="words run together", says="keep one space")
def squeezed(train, evaluation):
    def squeeze(text):
        return "".join(text.lower().split())

    return [i for i, text in enumerate(evaluation) if squeeze(text) in set(map(squeeze, train))]


@right("1.7", "a set of seen prompts")
def seen_set(train, evaluation):
    seen = {plain(text) for text in train}
    return [i for i, text in enumerate(evaluation) if plain(text) in seen]


@right("1.7", "two loops")
def two_loops(train, evaluation):
    found = []
    for i, text in enumerate(evaluation):
        for other in train:
            if plain(text) == plain(other):
                found.append(i)
                break
    return found


@right("1.7", "a regular expression")
def regex(train, evaluation):
    def clean(text):
        return re.sub(r"\s+", " ", text.casefold()).strip()

    return [i for i, text in enumerate(evaluation) if clean(text) in {clean(t) for t in train}]


# 1.8 ------------------------------------------------------------------------------------------------------------------
FOUR = "four examples in rows of 10"


def first_fit(lengths, max_length, *, fits=None, check_length=True, order=None, pick=None):
    """First fit, in pieces that a wrong answer can replace."""
    fits = fits or (lambda used, length: used + length <= max_length)
    rows = []
    for number in order or range(len(lengths)):
        length = lengths[number]
        if check_length and length > max_length:
            raise ValueError(f"example {number} is too long")
        open_rows = [row for row in rows if fits(sum(lengths[i] for i in row), length)]
        if open_rows:
            (pick(open_rows) if pick else open_rows[0]).append(number)
        else:
            rows.append([number])
    return rows


@wrong("1.8", "looks at the last row only", case=FOUR, says="Only the last row")
def next_fit(lengths, max_length):
    rows = []
    for number, length in enumerate(lengths):
        if rows and sum(lengths[i] for i in rows[-1]) + length <= max_length:
            rows[-1].append(number)
        else:
            rows.append([number])
    return rows


@wrong("1.8", "all in one row", case=FOUR, says="more than max_length")
def one_row(lengths, max_length):
    return [list(range(len(lengths)))]


@wrong("1.8", "one row each", case=FOUR, says="Nothing is packed")
def unpacked(lengths, max_length):
    return [[i] for i in range(len(lengths))]


@wrong("1.8", "returns lengths", case=FOUR, says="not their lengths")
def of_lengths(lengths, max_length):
    return [[lengths[i] for i in row] for row in first_fit(lengths, max_length)]


@wrong("1.8", "strictly less", case="a full row", says="full to the last token")
def strict(lengths, max_length):
    return first_fit(lengths, max_length, fits=lambda used, length: used + length < max_length)


@wrong("1.8", "sorts first", case=FOUR, says="Sorted by length")
def sorts(lengths, max_length):
    return first_fit(lengths, max_length, order=sorted(range(len(lengths)), key=lambda i: -lengths[i]))


@wrong("1.8", "takes the fullest row", case="the first row with room", says="take the first")
def best_fit(lengths, max_length):
    return first_fit(
        lengths, max_length, pick=lambda rows: max(rows, key=lambda r: sum(lengths[i] for i in r))
    )


@wrong("1.8", "a row that is too long", case="longer than a row", says="no prompt")
def too_long(lengths, max_length):
    return first_fit(lengths, max_length, check_length=False)


@wrong("1.8", "starts with an empty row", case="nothing to pack", says="no rows")
def starts_with_a_row(lengths, max_length):
    return first_fit(lengths, max_length) or [[]]


@right("1.8", "pieces")
def in_pieces(lengths, max_length):
    return first_fit(lengths, max_length)


@right("1.8", "keeps the free room of each row")
def free_room(lengths, max_length):
    rows, room = [], []
    for number, length in enumerate(lengths):
        if length > max_length:
            raise ValueError("too long for a row")
        place = next((k for k, free in enumerate(room) if free >= length), None)
        if place is None:
            rows.append([])
            room.append(max_length)
            place = -1
        rows[place].append(number)
        room[place] -= length
    return rows


@right("1.8", "checks first, then packs")
def checks_first(lengths, max_length):
    if any(length > max_length for length in lengths):
        raise ValueError("Too long: " + str(max(lengths)))
    rows = []
    for number in range(len(lengths)):
        for row in rows:
            if sum(lengths[i] for i in [*row, number]) <= max_length:
                row.append(number)
                break
        else:
            rows.append([number])
    return rows


# 1.9 ------------------------------------------------------------------------------------------------------------------


def spans_by(*, start=None, end=None, turns=None, check=True):
    """Spans by rendering, with one part exchanged."""

    def answer_spans(messages, render):
        found = []
        numbers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        for i in turns(numbers) if turns else numbers:
            before, upto = render(messages[:i], prompt=True), render(messages[: i + 1])
            whole = render(messages)
            if check and not (whole.startswith(upto) and upto.startswith(before)):
                raise ValueError("the template changes its mind")
            first = start(messages, i, render) if start else len(before)
            last = end(messages, i, upto, first) if end else len(upto.rstrip())
            found.append((first, last))
        return found

    return answer_spans


spans_with_newline = wrong(
    "1.9", "the newline after the mark", case="ChatML", says="newline after the end mark"
)(spans_by(end=lambda messages, i, upto, first: len(upto)))
spans_without_mark = wrong("1.9", "without the end mark", case="ChatML", says="never learn to stop")(
    spans_by(end=lambda messages, i, upto, first: first + len(messages[i]["content"]))
)
spans_with_header = wrong("1.9", "without prompt=True", case="ChatML", says="prompt=True")(
    spans_by(start=lambda messages, i, render: len(render(messages[:i])))
)
spans_of_last = wrong("1.9", "the last answer only", case="two answers", says="Each answer has a span")(
    spans_by(turns=lambda numbers: numbers[-1:])
)
spans_unchecked = wrong(
    "1.9", "no look at the whole text", case="a template that forgets", says="ValueError"
)(spans_by(check=False))


@wrong("1.9", "knows ChatML", case="another template", says="Nothing of the template")
def knows_chatml(messages, render):
    text = render(messages)
    pattern = r"(?<=<\|im_start\|>assistant\n).*?<\|im_end\|>"
    return [match.span() for match in re.finditer(pattern, text, re.S)]


@wrong(
    "1.9",
    "searches for the answer",
    case="an answer that stands in the question too",
    says="not from searching",
)
def searches(messages, render):
    text, found = render(messages), []
    for i, m in enumerate(messages):
        if m["role"] == "assistant":
            at = text.index(m["content"])
            found.append(
                (at, at + len(render(messages[: i + 1]).rstrip()) - len(render(messages[:i], prompt=True)))
            )
    return found


@wrong("1.9", "looks at one beginning only", case="a template that adds a turn", says="either")
def one_beginning(messages, render):
    text, found = render(messages), []
    for i, m in enumerate(messages):
        if m["role"] == "assistant":
            before, upto = render(messages[:i], prompt=True), render(messages[: i + 1])
            if len(text) < len(upto) or "</think>" in upto:
                raise ValueError("the template forgets")
            found.append((len(before), len(upto.rstrip())))
    return found


@wrong(
    "1.9",
    "compares with the whole text only",
    case="an opening that isn't kept",
    says="an opened answer isn't",
)
def whole_only(messages, render):
    text, found = render(messages), []
    for i, m in enumerate(messages):
        if m["role"] == "assistant":
            upto = render(messages[: i + 1])
            if not text.startswith(upto):
                raise ValueError("the template changes its mind")
            found.append((len(render(messages[:i], prompt=True)), len(upto.rstrip())))
    return found


right("1.9", "in pieces")(spans_by())


@right("1.9", "a growing list")
def grows(messages, render):
    found, so_far = [], []
    for m in messages:
        before = render(so_far, prompt=True)
        so_far = [*so_far, m]
        upto = render(so_far)
        if m["role"] != "assistant":
            continue
        if render(messages)[: len(upto)] != upto or upto[: len(before)] != before:
            raise ValueError("template: another text")
        found.append((len(before), len(upto.rstrip())))
    return found


@right("1.9", "from the last to the first")
def backwards(messages, render):
    text, found = render(messages), []
    for i in reversed(range(len(messages))):
        if messages[i]["role"] == "assistant":
            upto = render(messages[: i + 1])
            before = render(messages[:i], prompt=True)
            if not text.startswith(upto) or not upto.startswith(before):
                raise ValueError("This template can't be used")
            found.insert(0, (len(before), len(upto.rstrip())))
    return found


# 1.10 -----------------------------------------------------------------------------------------------------------------
SMALL = "small ones first"


@wrong("1.10", "first fit in order", case=SMALL, says="Four rows")
def first_fit_again(lengths, max_length):
    return first_fit(lengths, max_length)


@wrong("1.10", "one row each", case=SMALL, says="Four rows")
def one_each(lengths, max_length):
    return [[i] for i in range(len(lengths))]


@wrong("1.10", "one long row", case=SMALL, says="each with a 7 and a 3")
def one_long_row(lengths, max_length):
    return [list(range(len(lengths)))]


@wrong("1.10", "drops what doesn't fit", case=SMALL, says="hold them all")
def drops(lengths, max_length):
    return [row for row in first_fit(lengths, max_length) if sum(lengths[i] for i in row) == max_length]


@wrong("1.10", "returns lengths", case=SMALL, says="hold them all")
def lengths_in_rows(lengths, max_length):
    return [[lengths[i] for i in row] for row in in_order(lengths, max_length, reverse=True)]


@wrong("1.10", "numbers in the sorted list", case="sixteen of all sizes", says="six are asked for")
def sorted_numbers(lengths, max_length):
    return (
        first_fit(sorted(lengths, reverse=True), max_length)
        if len(set(lengths)) > 2
        else in_order(lengths, max_length, reverse=True)
    )


@wrong("1.10", "the smallest first", case=SMALL, says="Four rows")
def smallest_first(lengths, max_length):
    return in_order(lengths, max_length, reverse=False)


def in_order(lengths, max_length, *, reverse):
    order = sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=reverse)
    return first_fit(lengths, max_length, order=order)


@right("1.10", "first fit decreasing")
def decreasing(lengths, max_length):
    return in_order(lengths, max_length, reverse=True)


@right("1.10", "best fit decreasing")
def best_decreasing(lengths, max_length):
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return first_fit(
        lengths,
        max_length,
        order=order,
        pick=lambda rows: max(rows, key=lambda r: sum(lengths[i] for i in r)),
    )


@right("1.10", "fills one row after the other")
def one_after_the_other(lengths, max_length):
    left, rows = sorted(range(len(lengths)), key=lambda i: -lengths[i]), []
    while left:
        row = []
        for i in list(left):
            if sum(lengths[k] for k in row) + lengths[i] <= max_length:
                row.append(i)
                left.remove(i)
        rows.append(row)
    return rows


# Statements of the texts, and what ignores them -------------------------------------------------------------------------


@wrong("1.1", "strips the content", case="white space in the content", says="was stripped")
def strips_content(messages):
    return "".join(f"<|im_start|>{m['role']}\n{m['content'].strip()}<|im_end|>\n" for m in messages)


@wrong("1.1", "leaves empty turns out", case="an empty content", says="a turn all the same")
def skips_empty(messages):
    return "".join(turn(m) for m in messages if m["content"])


@wrong("1.2", "takes the id 0 for masked", case="text goes on after the answer", says="not at the id")
@of_one_span
def id_zero(ids, offsets, start, end):
    return [i if i and a < end and b > start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "takes a start of 0 for none", case="the answer begins the text", says="start is 0")
@of_one_span
def start_zero(ids, offsets, start, end):
    if not start:
        return [-100] * len(ids)
    return [i if a < end and b > start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "other names", case=AT_BOUNDARY, says="by these names")
def renamed_parameters(i, o, s):
    return [t if any(a < e and b > f for f, e in s) else -100 for t, (a, b) in zip(i, o, strict=True)]


@wrong("1.3", "from the first pad token on", case="the pad token inside a row", says="may stand anywhere")
def from_first_pad(rows, pad_id):
    ids, mask = ids_of(rows, pad_id), mask_of(rows)
    labels = ids_of(rows, -100)
    for k, row in enumerate(rows):
        if pad_id in row[:-1]:
            labels[k, row.index(pad_id)] = -100
    return batch(ids, mask, labels)


@wrong("1.3", "lists", case=OTHER, says="only its type is not")
def as_lists(rows, pad_id):
    made = batch(ids_of(rows, pad_id), mask_of(rows), ids_of(rows, -100))
    return {name: value.tolist() for name, value in made.items()}


@wrong("1.3", "int32", case=OTHER, says="only its type is not")
def as_int32(rows, pad_id):
    made = batch(ids_of(rows, pad_id), mask_of(rows), ids_of(rows, -100))
    return {name: value.int() for name, value in made.items()}


@wrong("1.4", "nothing differs from -100", case="cut to one token", says="Nothing is not something")
def nothing_differs(labels, max_length):
    return set(labels[1:max_length]) != {-100}


@wrong("1.5", "what is left over", case=BEGIN, says="after the prompt")
def left_over(prompt_ids, ids):
    if ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError("boundary")
    return len(ids) - len(prompt_ids)


@wrong("1.5", "returns the error", case=MERGES, says="raise it")
def returns_error(prompt_ids, ids):
    if ids[: len(prompt_ids)] != prompt_ids:
        return ValueError("boundary")
    return len(prompt_ids)


@wrong("1.5", "asserts", case=MERGES, says="AssertionError")
def asserts(prompt_ids, ids):
    assert ids[: len(prompt_ids)] == prompt_ids, "boundary"
    return len(prompt_ids)


@wrong("1.5", "the same set of ids", case="the same ids in another order", says="at its own place")
def set_of_ids(prompt_ids, ids):
    if len(ids) < len(prompt_ids) or not set(prompt_ids) <= set(ids[: len(prompt_ids)]):
        raise ValueError("boundary")
    return len(prompt_ids)


@wrong("1.5", "anywhere in the text", case="the prompt stands further on", says="begin with the prompt's")
def anywhere(prompt_ids, ids):
    n = len(prompt_ids)
    if not any(ids[k : k + n] == prompt_ids for k in range(len(ids) - n + 1)):
        raise ValueError("boundary")
    return n


@wrong("1.5", "needs an answer", case="nothing after the prompt", says="nothing but its prompt")
def needs_answer(prompt_ids, ids):
    if len(ids) <= len(prompt_ids) or ids[: len(prompt_ids)] != prompt_ids:
        raise ValueError("boundary")
    return len(prompt_ids)


def validator(
    *,
    holes="strict",
    placeholder=lambda out: out.strip().lower() in STANDS_FOR_NOTHING,
    merged=MERGED_LINE,
    order=1,
):
    """A validator of rows with one part exchanged."""

    def problem_of(row):
        instruction, out = row["instruction"], row["output"]
        no_instruction = not (instruction or "").strip() if holes != "plain" else not instruction
        if no_instruction and order:
            return "empty_instruction"
        if out is None or (isinstance(out, str) and not out.strip()) or (holes == "falsy" and not out):
            return "empty_answer"
        if no_instruction:
            return "empty_instruction"
        if not isinstance(out, str):
            return "not_text"
        if placeholder(out):
            return "placeholder_answer"
        return "merged_instructions" if re.search(merged, out, re.M) else "ok"

    return problem_of


validators = {}
for _why, _case, _says, _parts in (
    (
        "anywhere in a line",
        "in the middle of a line",
        "A line must begin so",
        {"merged": MERGED_LINE.lstrip("^")},
    ),
    ("a placeholder within", "a placeholder within a word", "banana", {"placeholder": contains_placeholder}),
    ("0 is empty", "the number 0", "it is there", {"holes": "falsy"}),
    ("Instruction only", "the next task's output", "each of the three", {"merged": r"^\d+\. Instruction:"}),
    ("no Input", "the next task's input", "each of the three", {"merged": r"^\d+\. (Instruction|Output):"}),
    (
        "two digits",
        "a number of one digit",
        "one digit or several",
        {"merged": r"^\d\d\. (Instruction|Input|Output):"},
    ),
    (
        "an instruction of white space",
        "an instruction of white space",
        "for the instruction too",
        {"holes": "plain"},
    ),
    ("the answer first", "two problems", "the instruction comes first", {"order": 0}),
):
    validators[_why] = wrong("1.6", _why, case=_case, says=_says)(validator(**_parts))


@wrong("1.7", "index()", case="twice in the evaluation rows", says="index() finds the first")
def by_index(train, evaluation):
    seen = set(map(same_form, train))
    return [evaluation.index(e) for e in evaluation if same_form(e) in seen]


@wrong("1.7", "one side only", case="the training prompt is written oddly", says="both sides")
def one_side(train, evaluation):
    known = {" ".join(t.split()) if t[:1].isspace() else same_form(t) for t in train}
    return [i for i, e in enumerate(evaluation) if same_form(e) in known]


@wrong("1.7", "in train's order, each time", case="twice in train, in another order", says="ascending order")
def in_trains_order(train, evaluation):
    return [i for t in train for i, e in enumerate(evaluation) if same_form(e) == same_form(t)]


@wrong("1.8", "exactly full is too long", case="an example as long as a row", says="only longer ones")
def full_is_too_long(lengths, max_length):
    return packed(lengths, max_length, too_long=lambda n: n >= max_length)


@wrong("1.8", "index()", case="equal lengths", says="not with index()")
def numbered_by_index(lengths, max_length):
    return packed(lengths, max_length, number=lambda k, n: lengths.index(n))


def packed(lengths, max_length, too_long=None, number=lambda k, n: k):
    rows, room = [], []
    for k, n in enumerate(lengths):
        if too_long(n) if too_long else n > max_length:
            raise ValueError("too long")
        at = next((j for j, free in enumerate(room) if free >= n), None)
        if at is None:
            rows.append([])
            room.append(max_length)
            at = -1
        rows[at].append(number(k, n))
        room[at] -= n
    return rows


ANSWERS.equivalent("1.1", "a role has no white space at its ends", "m['role'] -> m['role'].strip()")
ANSWERS.equivalent(
    "1.1",
    "any of a set is any of the list; marks hold no white space",
    "(mark in m['content'] for m in messages for mark in marks) -> "
    "{mark in m['content'] for m in messages for mark in marks}",
    "m['content'] -> m['content'].strip()",
)
ANSWERS.equivalent(
    "1.3",
    "the largest of a set is that of the list",
    "(len(row) for row in rows) -> {len(row) for row in rows}",
)
ANSWERS.equivalent(
    "1.4",
    "any of a set is any of the list",
    "(label != -100 for label in labels[1:max_length]) -> {label != -100 for label in labels[1:max_length]}",
)
ANSWERS.equivalent(
    "1.2",
    "any of a set is any of the list",
    "(first < end and last > start for start, end in spans) -> {first < end and last > start for start, end in spans}",
)
ANSWERS.equivalent(
    "1.7",
    "an empty prompt in train and in evaluation: the text doesn't speak of it",
    "(… for i, prompt in enumerate(evaluation) if key(prompt) in seen) -> "
    "(… for i, prompt in enumerate(evaluation) if prompt and key(prompt) in seen)",
)
ANSWERS.equivalent("1.7", "both sides are brought to one case, whichever", "prompt.lower() -> prompt.upper()")
ANSWERS.equivalent(
    "1.9", "a role has no white space at its ends", "message['role'] -> message['role'].strip()"
)
ANSWERS.equivalent(
    "1.10",
    "placing the large ones first is enough: any row with room is then as good, on these lists",
    "[k for k in range(len(room)) if room[k] >= lengths[number]] -> {k for k in range(len(room)) if room[k] >= lengths[number]}",
    "min(fitting, key=lambda k: room[k]) -> max(fitting, key=lambda k: room[k])",
    "min(fitting, key=lambda k: room[k]) -> min(fitting)",
)
ANSWERS.equivalent(
    "1.8",
    "an example has at least one token, so a row without room fits none",
    "(… for k, free in enumerate(room) if free >= length) -> (… for k, free in enumerate(room) if free and free >= length)",
)

ANSWERS.statements(
    "1.1",
    {
        "<|im_start|>role, a newline": space,
        "the content": strips_content,
        "<|im_end|> right after the content": newline_inside,
        "<|im_end|>": open_end,
        "a newline after each turn": joined,
        "nothing else": generation_prompt,
        "each turn, whatever its role": no_system,
        "each turn, however many": last_two,
        "each turn, an empty one too": skips_empty,
        "return": prints,
        "a mark in a content is refused": writes_marks,
        "each of the two": both_marks,
        "the opening one too": closing_only,
        "in any turn": of_users,
        "nothing but the marks": too_strict,
    },
)
ANSWERS.statements(
    "1.2",
    {
        "the id": zeros,
        "whatever the id": id_zero,
        "shares at least one character": touching,
        "at least one, not all": begins_inside,
        "any of the spans": first_span,
        "and not between them": hull,
        "text[start:end], so not after it": open_ended,
        "text[start:end] may begin the text": start_zero,
        "else -100": copies,
        "a label for each id": cut,
        "in its place": shifted,
        "the parameters' names": renamed_parameters,
    },
)
ANSWERS.statements(
    "1.3",
    {
        "padded on the right": left,
        "to the longest row": shortest,
        "input_ids with pad_id": ignore_in_ids,
        "the mask 0 where padded": attends_to_padding,
        "padding isn't supervised": labels_are_ids,
        "all of a row is supervised, its end token too": by_token,
        "all of a row is attended to": attention_by_token,
        "a pad token inside a row": from_first_pad,
        "tensors": as_lists,
        "int64": as_int32,
    },
)
ANSWERS.statements(
    "1.4",
    {
        "still one": all_of_them,
        "the first max_length labels": uncut,
        "max_length of them": one_short,
        "a row may be shorter": needs_full_length,
        "that the loss uses: not position 0": with_first,
        "-100, and nothing else, is skipped": positive,
        "anywhere in the row": last_only,
        "True or False": number_left,
        "False where nothing is left": nothing_differs,
    },
)
ANSWERS.statements(
    "1.5",
    {
        "the number of prompt tokens": minus_one,
        "of the prompt, not of the answer": left_over,
        "exactly the prompt's ids": trusts,
        "in their order": set_of_ids,
        "begin with them": anywhere,
        "a text shorter than the prompt doesn't": zips,
        "a text that is the prompt does": needs_answer,
        "raise": returns_error,
        "a ValueError": asserts,
        'with "boundary" in its message': silent,
    },
)
ANSWERS.statements(
    "1.6",
    {
        "empty_instruction": answers_only,
        "an instruction of white space": validators["an instruction of white space"],
        "empty_answer: None": strips_none,
        "empty_answer: white space": truthy,
        "nothing else is empty": validators["0 is empty"],
        "not_text": converts,
        "placeholder_answer": no_placeholders,
        "with white space and in any case": unstripped,
        "the whole answer": validators["a placeholder within"],
        "merged_instructions": no_merged,
        "a line begins so": validators["anywhere in a line"],
        "Instruction, Input or Output": validators["Instruction only"],
        "with a colon": no_colon,
        "any number": validators["two digits"],
        "in this order": validators["the answer first"],
    },
)
ANSWERS.statements(
    "1.7",
    {
        "positions": prompts,
        "in evaluation": in_train,
        "of each prompt": once,
        "of each, also where texts are equal": by_index,
        "that is also in train": any_duplicate,
        "sorted, each once": in_trains_order,
        "a list": a_set,
        "but for case": exact,
        "and white space": lower_only,
        "on both sides": one_side,
        "whole prompts": substring,
        "one space stays between words": squeezed,
    },
)
ANSWERS.statements(
    "1.8",
    {
        "example numbers": of_lengths,
        "in the order given": sorts,
        "into the first row that has room": best_fit,
        "any row, not only the last": next_fit,
        "room to the last token": strict,
        "max_length tokens": one_row,
        "several to a row": unpacked,
        "ValueError for a longer one": too_long,
        "only for a longer one": full_is_too_long,
        "numbers, not the first of equal lengths": numbered_by_index,
        "no examples, no rows": starts_with_a_row,
    },
)


@wrong(
    "1.2", "an end of the token in the answer", case="a token around the answer", says="more on both sides"
)
@of_one_span
def an_end_inside(ids, offsets, start, end):
    return [
        i if start <= a < end or start < b <= end else -100 for i, (a, b) in zip(ids, offsets, strict=True)
    ]


@wrong("1.3", "as wide as the last row", case="the longest row first", says="may stand anywhere")
def as_the_last(rows, pad_id):
    width = len(rows[-1])
    ids = torch.full((len(rows), width), pad_id)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = labels[k, : len(row)] = torch.tensor(row[:width])
        mask[k, : len(row)] = 1
    return batch(ids, mask, labels)


@wrong("1.6", "numbers only", case="a list", says="A list is no text")
def numbers_only(row):
    instruction, out = row["instruction"], row["output"]
    if not (instruction or "").strip():
        return "empty_instruction"
    if out is None:
        return "empty_answer"
    if isinstance(out, int | float):
        return "not_text"
    if not out.strip():
        return "empty_answer"
    if out.strip().lower() in STANDS_FOR_NOTHING:
        return "placeholder_answer"
    return "merged_instructions" if re.search(MERGED_LINE, out, re.M) else "ok"


ANSWERS.statements("1.2", {"a token around it shares characters too": an_end_inside})
ANSWERS.statements("1.3", {"the longest, wherever it stands": as_the_last})
ANSWERS.statements("1.6", {"anything that is no text": numbers_only})


@wrong("1.2", "the middle of the token", case="a token reaches over the boundary", says="shares a character")
@of_one_span
def by_its_middle(ids, offsets, start, end):
    return [i if start <= (a + b) / 2 < end else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.5", "first and last", case="the same ids in another order", says="at its own place")
def first_and_last(prompt_ids, ids):
    n = len(prompt_ids)
    if n and (len(ids) < n or prompt_ids[0] != ids[0] or prompt_ids[-1] != ids[n - 1]):
        raise ValueError("boundary")
    return n


@wrong("1.7", "without punctuation", case="another punctuation mark", says="everything else stays")
def without_punctuation(train, evaluation):
    seen = {" ".join(re.findall(r"\w+", t.lower())) for t in train}
    return [i for i, e in enumerate(evaluation) if " ".join(re.findall(r"\w+", e.lower())) in seen]


for _why, _case, _says, _parts in (
    (
        "begins like a placeholder",
        "a placeholder at the beginning",
        "not its beginning",
        {"placeholder": lambda out: out.strip().lower().startswith(tuple(STANDS_FOR_NOTHING))},
    ),
    (
        "some spellings",
        "a placeholder in capitals",
        "in any",
        {"placeholder": lambda out: out.strip() in {"N/A", "<NoInput>"} | STANDS_FOR_NOTHING},
    ),
):
    validators[_why] = wrong("1.6", _why, case=_case, says=_says)(validator(**_parts))

ANSWERS.statements("1.2", {"a single character is enough": by_its_middle})
ANSWERS.statements("1.5", {"each of them": first_and_last})
ANSWERS.statements("1.7", {"and in nothing else": without_punctuation})
ANSWERS.statements(
    "1.6",
    {"not its beginning": validators["begins like a placeholder"], "any case": validators["some spellings"]},
)
ANSWERS.statements(
    "1.9",
    {
        "each answer": spans_of_last,
        "begins where the opened answer ends": spans_with_header,
        "with its end mark": spans_without_mark,
        "without white space after it": spans_with_newline,
        "whatever the template": knows_chatml,
        "by rendering": searches,
        "ValueError if a beginning is written otherwise": spans_unchecked,
        "both beginnings": one_beginning,
        "of the text up to it, too": whole_only,
    },
)
ANSWERS.statements(
    "1.10",
    {
        "each example": drops,
        "numbers": lengths_in_rows,
        "of the list as given": sorted_numbers,
        "no row over max_length": one_long_row,
        "so few rows": first_fit_again,
    },
)
