"""What people hand in for the exercises of lab 01."""

import numpy as np
import torch
from onegpu.exercises.answers import Answers
from torch.nn.utils.rnn import pad_sequence

ANSWERS = Answers()
wrong, right = ANSWERS.wrong, ANSWERS.right

# 1.1 ------------------------------------------------------------------------------------------------------------------


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
    for m in messages:
        text += "<|im_start|>" + m["role"] + "\n"
        text += m["content"] + "<|im_end|>" + "\n"
    return text


@right("1.1", "join")
def join(messages):
    return "".join(map(turn, messages))


@right("1.1", "a jinja template, as tokenizers do")
def jinja(messages):
    from jinja2 import Template

    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    return Template(source, keep_trailing_newline=True).render(messages=messages)


# 1.2 ------------------------------------------------------------------------------------------------------------------
AT_BOUNDARY = "tokens end where the answer begins"


@wrong("1.2", "masks nothing", case=AT_BOUNDARY, says="Nothing is masked")
def copies(ids, offsets, start, end):
    return list(ids)


@wrong("1.2", "masks the answer", case=AT_BOUNDARY, says="wrong way round")
def inverted(ids, offsets, start, end):
    return [-100 if a < end and b > start else i for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "masks with 0", case=AT_BOUNDARY, says="0 is a token's id")
def zeros(ids, offsets, start, end):
    return [i if a < end and b > start else 0 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "shifts the labels", case=AT_BOUNDARY, says="shifts labels itself")
def shifted(ids, offsets, start, end):
    labels = [i if a < end and b > start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]
    return [*labels[1:], -100]


@wrong("1.2", "returns the answer's ids alone", case=AT_BOUNDARY, says="as long as the ids")
def cut(ids, offsets, start, end):
    return [i for i, (a, b) in zip(ids, offsets, strict=True) if a < end and b > start]


@wrong("1.2", "touching counts as inside", case=AT_BOUNDARY, says="only touches")
def touching(ids, offsets, start, end):
    return [i if a <= end and b >= start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "needs the token wholly before the end", case=AT_BOUNDARY, says="last token is masked")
def excludes_last(ids, offsets, start, end):
    return [i if a >= start and b < end else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong(
    "1.2",
    "token must begin in the answer",
    case="a token reaches over the boundary",
    says="shares a character",
)
def begins_inside(ids, offsets, start, end):
    return [i if start <= a < end else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "all from the start on", case="text goes on after the answer", says="next question")
def open_ended(ids, offsets, start, end):
    return [i if b > start else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


@wrong("1.2", "changes ids in place", case=AT_BOUNDARY, says="Work on a copy")
def in_place(ids, offsets, start, end):
    for k, (a, b) in enumerate(offsets):
        if not (a < end and b > start):
            ids[k] = -100
    return ids


@right("1.2", "a loop that counts characters")
def characters(ids, offsets, start, end):
    labels = []
    for i, (a, b) in zip(ids, offsets, strict=True):
        labels.append(i if set(range(a, b)) & set(range(start, end)) else -100)
    return labels


@right("1.2", "NumPy")
def numpy(ids, offsets, start, end):
    begin, stop = np.array(offsets).T
    return np.where(np.minimum(stop, end) > np.maximum(begin, start), ids, -100).tolist()


@right("1.2", "max and min")
def overlap(ids, offsets, start, end):
    return [i if max(a, start) < min(b, end) else -100 for i, (a, b) in zip(ids, offsets, strict=True)]


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
