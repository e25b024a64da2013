"""The doctor's findings, on machines made up for the test."""

from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from onegpu import doctor, runtime
from onegpu.cli.doctor import doctor as command
from onegpu.doctor import Check
from onegpu.runtime import environment

GIB = 2**30


def card(capability):
    return runtime.Machine("cuda", "a card", capability, 16 * GIB, 2, 12 * GIB)


def test_a_check_prints_as_one_plain_line():
    assert str(Check("ram", True, "12 GiB")) == "[OK] ram: 12 GiB"
    assert str(Check("ram", False, "1 GiB", "add some")) == "[FAIL] ram: 1 GiB -> add some"
    assert str(Check("gpu", True, "none", note=True)) == "[NOTE] gpu: none"


def test_a_missing_library_and_an_old_one_each_get_a_line_with_the_command():
    installed = {"peft": "0.12.0", "torch": "2.13.0+cpu"}
    found = list(
        doctor.check_requirements(
            ["torch>=2.11", "peft>=0.20", "bitsandbytes>=0.50", 'ray>=2; extra == "ray"'], installed.get
        )
    )
    assert [str(check) for check in found] == [
        '[FAIL] peft: 0.12.0 is too old -> pip install "peft>=0.20"',
        '[FAIL] bitsandbytes: not installed -> pip install "bitsandbytes>=0.50"',
    ]


def test_a_complete_set_of_libraries_is_one_line():
    (check,) = doctor.check_requirements(["torch>=2.11"], {"torch": "2.13.0+cpu"}.get)
    assert str(check) == "[OK] libraries: torch 2.13.0+cpu"


def test_the_packages_own_requirements_are_met_here():
    found = list(doctor.check_requirements(doctor._own_requirements(), environment.installed_version))
    assert [str(check) for check in found if not check.ok] == []


def test_a_torchao_that_peft_refuses_fails():
    check = doctor.check_torchao("0.10.0")
    assert check.status == "FAIL"
    assert "pip uninstall -y torchao" in check.fix


def test_peft_still_refuses_the_torchao_that_the_check_names(monkeypatch):
    from peft import import_utils

    monkeypatch.setattr(import_utils.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(import_utils.importlib_metadata, "version", lambda name: "0.15.0")
    import_utils.is_torchao_available.cache_clear()
    with pytest.raises(ImportError, match="incompatible version of torchao"):
        import_utils.is_torchao_available()
    monkeypatch.setattr(import_utils.importlib_metadata, "version", lambda name: doctor.OLDEST_TORCHAO)
    assert import_utils.is_torchao_available()
    import_utils.is_torchao_available.cache_clear()


def test_a_library_upgraded_after_its_import_asks_for_a_restart():
    check = doctor.check_stale([("peft", "0.18.0", "0.21.2"), ("torch", "2.13.0+cpu", "2.13.0")])
    assert check.status == "FAIL"
    assert check.found == "peft: 0.18.0 is loaded, 0.21.2 is installed"
    assert "restart" in check.fix


def test_bitsandbytes_works_on_this_cpu():
    assert doctor.check_bitsandbytes("cpu").status == "OK"


def test_a_bitsandbytes_that_is_missing_or_without_its_library_fails():
    def missing():
        raise ImportError("No module named 'bitsandbytes'")

    def broken(*args, **kwargs):
        raise RuntimeError("\nlibcudart.so.13 not found\nmore")

    half = SimpleNamespace(__version__="0.50.2", functional=SimpleNamespace(quantize_4bit=broken))
    assert "pip install" in doctor.check_bitsandbytes("cpu", missing).fix
    check = doctor.check_bitsandbytes("cpu", lambda: half)
    assert str(check).startswith("[FAIL] bitsandbytes: does not work on cpu: libcudart.so.13 not found ->")


def test_no_gpu_is_a_note_and_a_gpu_states_its_precision(tmp_path):
    cpu = runtime.Machine("cpu", "a CPU", None, GIB, 2, GIB)
    assert doctor.check_gpu(cpu, tmp_path / "none").status == "NOTE"
    assert "float16 autocast" in doctor.check_gpu(card((7, 5))).found


def test_a_card_that_torch_cannot_use_is_told_apart_from_no_card(tmp_path):
    (tmp_path / "nvidia0").touch()
    cpu = runtime.Machine("cpu", "a CPU", None, GIB, 2, GIB)
    assert "CUDA build of torch" in doctor.check_gpu(cpu, tmp_path / "nvidia0").fix


@pytest.mark.parametrize(("gib", "status"), [(1, "FAIL"), (3, "NOTE"), (12, "OK")])
def test_ram(gib, status):
    assert doctor.check_ram(gib * GIB).status == status


def test_disk_is_measured_where_the_cache_folder_will_be(tmp_path):
    assert doctor.check_disk(tmp_path / "not" / "yet").found.endswith(str(tmp_path / "not" / "yet"))
    assert doctor.check_disk(tmp_path, free_bytes=10**8).status == "FAIL"
    assert doctor.check_disk(tmp_path, free_bytes=10**10).status == "OK"


def test_an_unreachable_hub_is_a_note_because_the_small_model_does_not_need_it():
    assert doctor.check_hub(False, lambda: (False, "no answer")).status == "NOTE"
    assert doctor.check_hub(False, lambda: (True, "200")).status == "OK"
    assert "HF_HUB_OFFLINE" in doctor.check_hub(True, lambda: pytest.fail("asked")).found


def test_doctor_prints_a_line_for_every_check_it_returns(capsys, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    found = doctor.doctor()
    assert capsys.readouterr().out.splitlines() == [str(check) for check in found]
    assert {
        "python", "bitsandbytes", "gpu", "ram", "disk", "hub", "model", "jupyter", "ray",
    } <= {check.name for check in found}  # fmt: skip
    assert [str(check) for check in found if not check.ok] == []


def test_widgets_that_jupyterlab_can_not_draw_fail_and_no_jupyterlab_is_a_note():
    whole = {"jupyterlab": "4.6.6", "ipywidgets": "8.1.9", "jupyterlab_widgets": "3.0.17"}
    assert doctor.check_jupyter(whole.get).status == "OK"
    for name in ("ipywidgets", "jupyterlab_widgets"):
        check = doctor.check_jupyter((whole | {name: None}).get)
        assert check.status == "FAIL"
        assert check.fix.startswith(f"pip install {name}, ")
    assert doctor.check_jupyter({}.get).status == "NOTE"


def test_notebooks_are_counted_and_a_folder_without_them_fails(tmp_path):
    for place in ("course", "labs"):
        assert doctor.check_notebooks(tmp_path).status == "FAIL"
        (tmp_path / place).mkdir()
        (tmp_path / place / "00_x.ipynb").touch()
    assert doctor.check_notebooks(tmp_path).found.startswith("1 lessons and 1 labs")


def test_the_command_looks_at_notebooks_and_font_too(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_all_checks", lambda timeout_s: [Check("python", True, "3.11")])
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 0
    names = [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:2] == ["[OK] python", "[OK] notebooks"]
    assert names[2].endswith("] korean font")
    monkeypatch.setattr("onegpu.notebooks.working_copy.__file__", "/nowhere/a/b/c/working_copy.py")
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 1
    assert "[FAIL] notebooks: not in this installation -> install" in capsys.readouterr().out


def test_no_ray_and_no_korean_font_are_notes_with_what_to_install():
    assert doctor.check_ray("2.60.0").status == "OK"
    assert 'pip install "onegpu[ray]"' in doctor.check_ray(None).fix
    assert doctor.check_korean_font(None).status == "NOTE"
    assert "fonts-nanum" in doctor.check_korean_font(None).fix
