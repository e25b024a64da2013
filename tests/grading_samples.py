"""What students hand in: notebooks of lab 0, whose one exercise is small, each with the mark that it deserves."""

import json
from dataclasses import dataclass

import nbformat

RIGHT = "def weights_bytes(parameters, bits):\n    return (parameters * bits + 7) // 8"
WRONG = "def weights_bytes(parameters, bits):\n    return parameters * bits"
STUB = "def weights_bytes(parameters, bits):\n    return ...  # your code here"
CHECK = 'weights_bytes = check("0.1", weights_bytes)'
SOME = "def weights_bytes(parameters, bits):\n    return (parameters * bits + 7) // 8 if {} else 0"
"""An answer that is right where a condition holds: how a sample tells what its process can do."""


@dataclass(frozen=True)
class Sample:
    """A file that was handed in, and what must come of it."""

    name: str
    content: bytes
    status: str
    reason: str = ""  # words of the reason, or of the note

    @property
    def student(self) -> str:
        return self.name.removesuffix(".ipynb")


def notebook(*cells: str, first: str = "from onegpu.exercises import check") -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source) for source in (first, *cells)]
    return made


def lab(*cells: str, first: str = "from onegpu.exercises import check") -> bytes:
    return nbformat.writes(notebook(*cells, first=first)).encode()


def format_3(*cells: str) -> bytes:
    sheet = [{"cell_type": "code", "input": c.splitlines(keepends=True), "language": "python"} for c in cells]
    return json.dumps({"nbformat": 3, "nbformat_minor": 0, "worksheets": [{"cells": sheet}]}).encode()


def from_colab(*cells: str) -> bytes:
    made = json.loads(lab(*cells))
    made["nbformat_minor"] = 0
    made["metadata"] = {
        "colab": {"provenance": []},
        "widgets": {"application/vnd.jupyter.widget-state+json": {}},
    }
    for cell in made["cells"]:
        del cell["id"]
        cell["metadata"] = {"id": "aBc", "outputId": "1", "colab": {"height": 17}}
    return json.dumps(made).encode()


_TABLE = "{(1000, 32): 4000, (134_515_008, 4): 67_257_504, (3, 4): 2}"
_PATCH = """import gc, onegpu.exercises.execution as e
for found in gc.get_objects():
    if type(found) is dict and "Session" in found and "StudentSide" in found:
        found["call"] = lambda *arguments, **keywords: e.Call(4000)"""

_HONEST = {
    "plain": [RIGHT, CHECK],
    "check deleted": [RIGHT],
    "check by keywords": [RIGHT, 'weights_bytes = check(number="0.1", function=weights_bytes)'],
    "check broken by Black": [RIGHT, 'weights_bytes = check(\n    "0.1",\n    weights_bytes,\n)'],
    "check with a lambda": [
        'weights_bytes = check("0.1", lambda parameters, bits: (parameters * bits + 7) // 8)'
    ],
    "static method": [
        "class Mine:\n    @staticmethod\n    def size(parameters, bits):\n        return (parameters * bits + 7) // 8",
        'check("0.1", Mine.size)',
    ],
    "renamed": [RIGHT.replace("weights_bytes", "mine"), 'check("0.1", mine)'],
    "renamed and check deleted": ["# 0.1\n" + RIGHT.replace("weights_bytes", "my_size")],
    "name used again, no check": [RIGHT, "weights_bytes = weights_bytes(1000, 4)"],
    "name used again": [RIGHT, CHECK, "weights_bytes = weights_bytes(1000, 4)"],
    "own check": [RIGHT, CHECK, "def check(*a):\n    return 0"],
    "check shadowed before": ["def check(*a):\n    return None", RIGHT, CHECK],
    "check printed by hand": [RIGHT, 'print("✔ 0.1 right")'],
    "comment with a check": [RIGHT, CHECK, '# first: check("0.1", my_first_try)'],
    "check of another number": [RIGHT, 'weights_bytes = check("0.7", weights_bytes)'],
    "check twice": [RIGHT, CHECK, CHECK],
    "check aliased": [RIGHT, 'import onegpu.exercises as o\no.check("0.1", weights_bytes)'],
    "dies at the end": [RIGHT, CHECK, "import os\nos._exit(1)"],
    "dies in the middle": ["import os\nos.kill(os.getpid(), 9)", RIGHT, CHECK],
    "dies in the cell of the function": ["import os\n" + RIGHT + "\nos._exit(1)"],
    "out of memory": ["x = bytearray(200 * 2**30)", RIGHT, CHECK],
    "loops in a cell": [RIGHT, CHECK, "while True:\n    pass"],
    "exits": [RIGHT, CHECK, "exit()", "import sys\nsys.exit(1)"],
    "asks": ['name = input("Your name? ")\n' + RIGHT, CHECK],
    "installs": ["%pip install nothing\n!ls\n" + RIGHT, CHECK],
    "shell script": ["%%bash\nls", RIGHT, CHECK],
    "package is missing": ["import a_package_that_is_missing\n" + RIGHT, CHECK],
    "mounts a drive": ["from google.colab import drive\ndrive.mount('/content')\n" + RIGHT, CHECK],
    "ten megabytes": ["print('x' * 10_000_000)", RIGHT, CHECK],
    "many prints": [
        RIGHT.replace("return", "print(parameters); return"),
        CHECK,
        "for i in range(3000): print(i)",
    ],
    "stdout closed": ["import sys, os\nsys.stdout.close()\nos.close(1)", RIGHT, CHECK],
    "print patched": ["import builtins\nbuiltins.print = None", RIGHT, CHECK],
    "helper in another cell": [
        "def up(n, d):\n    return -(-n // d)",
        "def weights_bytes(parameters, bits):\n    return up(parameters * bits, 8)",
        CHECK,
    ],
    "import in another cell": [
        "import math as m",
        "def weights_bytes(parameters, bits):\n    return m.ceil(parameters * bits / 8)",
        CHECK,
    ],
    "helper changed after the check": [
        "E = 8",
        "def weights_bytes(parameters, bits):\n    return -(-parameters * bits // E)",
        CHECK,
        "E = 'eight'",
    ],
    "wrong, then right": [WRONG, CHECK, RIGHT, CHECK],
    "right, then wrong": [RIGHT, CHECK, WRONG, CHECK],
    "mended without a check": [WRONG, CHECK, RIGHT],
    "numpy": ["import numpy as np", RIGHT.replace("return (", "return np.int64("), CHECK],
    "cell magic": ["%%time\n" + RIGHT, CHECK],
    "awaits": ["import asyncio\nawait asyncio.sleep(0)", RIGHT, CHECK],
    "callable object": [
        "class Size:\n    def __call__(self, parameters, bits):\n        return (parameters * bits + 7) // 8",
        'check("0.1", Size())',
    ],
    "cached": ["import functools\n@functools.cache\n" + RIGHT, CHECK],
    "writes a file and starts a thread": [
        "open('notes.txt', 'w').write('x')\nimport threading\nthreading.Thread(target=print).start()",
        RIGHT,
        CHECK,
    ],
    "broken cell elsewhere": ["def broken(:\n    pass", RIGHT, CHECK],
    "no secrets": ["import os", SOME.format("'A_SECRET_TOKEN' not in os.environ"), CHECK],
}

_NOT_RIGHT = {
    "wrong": ([WRONG, CHECK], "wrong", "These are bits"),
    "prints a tick": (
        [WRONG, 'print("✔ 0.1 right")  # check("0.1", weights_bytes)'],
        "wrong",
        "These are bits",
    ),
    "returns nothing": ([RIGHT.replace("return ", "print(") + ")", CHECK], "wrong", "return"),
    "raises": ([RIGHT + " / None", CHECK], "wrong", ""),
    "ends the process": (
        ["def weights_bytes(parameters, bits):\n    import os\n    os._exit(3)", CHECK],
        "wrong",
        "ended with status 3",
    ),
    "loops in the function": (
        ["def weights_bytes(parameters, bits):\n    while True:\n        pass", CHECK],
        "wrong",
        "stopped",
    ),
    "knows the lab's numbers": (
        [f"def weights_bytes(parameters, bits):\n    return {_TABLE}.get((parameters, bits), 0)", CHECK],
        "wrong",
        "The lab's own numbers come out right",
    ),
    "untouched": ([STUB, CHECK], "not attempted", ""),
    "untouched, no check": ([STUB], "not attempted", ""),
    "raises NotImplementedError": (
        [RIGHT.replace("return", "raise NotImplementedError;"), CHECK],
        "not attempted",
        "",
    ),
    "no function": (["x = 1", "check('0.1', weights_bytes)"], "failed", "not defined"),
    "syntax error": ([RIGHT.replace("bits):", "bits:"), CHECK], "failed", "SyntaxError"),
    "one cell fails": (
        [f"if 1 / 0:\n    {RIGHT.splitlines()[0]} return 1", CHECK],
        "failed",
        "ZeroDivisionError",
    ),
    # Tricks
    "examine patched": (
        [
            "import onegpu.exercises as o, onegpu.exercises.checking as c\n"
            "o.examine = c.examine = lambda e, f, **k: c.Outcome(e.number, 'right', '✔')",
            WRONG,
            CHECK,
        ],
        "wrong",
        "",
    ),
    "call patched": (
        [_PATCH, STUB, CHECK],
        "",
        "",
    ),
    "equal to everything": (
        [
            "class Yes(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__",
            "def weights_bytes(parameters, bits):\n    return Yes(1)",
            CHECK,
        ],
        "wrong",
        "",
    ),
    "forges a message": (
        [
            "import os, json, struct\nm = json.dumps({'done': {'result': ['int', '0xfa0']}}).encode()\n"
            "for n in range(3, 20):\n    try:\n        os.write(n, struct.pack('>Q', len(m)) + m)\n"
            "    except OSError:\n        pass",
            STUB,
            CHECK,
        ],
        "",  # whatever, but right
        "",
    ),
    "the reference by find": (
        ["from onegpu.exercises import find\nweights_bytes = find('0.1').reference", CHECK],
        "failed",
        "",
    ),
    "the reference by import": (
        ["from onegpu.exercises.start_here import weights_bytes", CHECK],
        "failed",
        "",
    ),
    "the reference by its text": (
        ["import onegpu.exercises as o\nexec(open(o.__path__[0] + '/start_here.py').read())", CHECK],
        "failed",
        "",
    ),
    "the reference from check": (
        [
            STUB,
            'given = check("0.1", weights_bytes)',
            "def weights_bytes(parameters, bits):\n    return given(parameters, bits)",
            CHECK,
        ],
        "borrowed",
        "reference",
    ),
    "the reference from check, kept": ([STUB, CHECK], "not attempted", ""),
}

_UNREADABLE = {
    "cut off": (b'{"cells": [', "not JSON"),
    "no notebook": (b'{"a": 1}', "no nbformat"),
    "empty": (b"", "empty"),
    "a web page": (b"<!DOCTYPE html><html></html>", "web page"),
    "a picture": (b"\x89PNG\r\n\xff\xfe\x00", "isn't text"),
    "a merge": (b"{\n<<<<<<< HEAD\n}", "merge"),
    "without code": (nbformat.writes(nbformat.v4.new_notebook()).encode(), "without a code cell"),
    "another notebook": (lab("x = 1", first=""), "no function weights_bytes"),
}


def samples() -> list[Sample]:
    """All of them, in files named after what they are."""
    found = [Sample(f"{name}.ipynb", lab(*cells), "right") for name, cells in _HONEST.items()]
    found += [
        Sample(f"{name}.ipynb", lab(*cells), status, reason)
        for name, (cells, status, reason) in _NOT_RIGHT.items()
    ]
    found += [Sample(f"{name}.ipynb", content, "failed", why) for name, (content, why) in _UNREADABLE.items()]
    cells = ("from onegpu.exercises import check", RIGHT, CHECK)
    found += [
        Sample("format 3.ipynb", format_3(*cells), "right"),
        Sample("colab.ipynb", from_colab(RIGHT, CHECK), "right"),
        Sample("byte order mark.ipynb", b"\xef\xbb\xbf" + lab(RIGHT, CHECK), "right"),
        Sample("utf-16.ipynb", lab(RIGHT, CHECK).decode().encode("utf-16"), "right"),
        Sample("김민수.ipynb", lab(RIGHT, CHECK), "right"),
        Sample("=HYPERLINK.ipynb", lab(RIGHT, CHECK), "right"),
    ]
    return found
