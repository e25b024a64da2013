"""--push-to-hub against a local stand-in of the hub's API: one commit, the login, refusals in one sentence."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants
from onegpu.export import export, push

from .test_chat import call

TOKEN = "hf_stand_in"


class Hub:
    """Keeps what was committed; refuses what it is told to."""

    def __init__(self):
        self.repos, self.commits, self.refuse = {}, [], {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def answer(self, status, content):
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def respond(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                refused = next((status for part, status in hub.refuse.items() if part in path), None)
                if refused or self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.answer(refused or 401, {"error": "no"})
                elif path == "/api/whoami-v2":
                    self.answer(200, {"name": "ada", "type": "user", "auth": {}})
                elif path == "/api/repos/create":
                    asked = json.loads(body)
                    owner = asked.get("organization") or "ada"
                    hub.repos[f"{owner}/{asked['name']}"] = asked
                    self.answer(200, {"url": f"{hub.endpoint}/{owner}/{asked['name']}"})
                elif "/preupload/" in path:
                    files = json.loads(body)["files"]
                    self.answer(
                        200,
                        {
                            "files": [
                                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                                for f in files
                            ]
                        },
                    )
                elif "/commit/" in path:
                    lines = [json.loads(line) for line in body.decode().splitlines()]
                    hub.commits.append(
                        {
                            x["value"]["path"]: base64.b64decode(x["value"]["content"])
                            for x in lines
                            if x["key"] == "file"
                        }
                    )
                    repo = "/".join(path.split("/")[3:5])
                    self.answer(
                        200,
                        {
                            "commitUrl": f"{hub.endpoint}/{repo}/commit/abc",
                            "commitOid": "abc",
                            "success": True,
                        },
                    )
                elif path.startswith("/api/models/") and not any(repo in path for repo in hub.repos):
                    self.answer(404, {"error": "no such repository"})
                else:
                    self.answer(200, {"sha": "abc", "id": "ada/x", "siblings": [], "private": True})

            do_GET = do_POST = do_HEAD = respond

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def is_private(asked):
    """What huggingface_hub asks for, before and since 2.4."""
    return asked.get("visibility") == "private" or asked.get("private") is True


@pytest.fixture
def hub(monkeypatch):
    found = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", found.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield found
    found.server.shutdown()


def test_an_adapter_goes_up_in_one_commit_with_its_card_and_base(hub, tiny_run):
    done = export(tiny_run, "adapter", push_to_hub="weather")
    assert f"{hub.endpoint}/ada/weather" in str(done)
    assert is_private(hub.repos["ada/weather"])
    (files,) = hub.commits
    assert (
        files["adapter_model.safetensors"]
        == (tiny_run / "adapter" / "adapter_model.safetensors").read_bytes()
    )
    assert {"README.md", "base_model.json", "adapter_config.json", "tokenizer.json"} <= set(files)
    assert b"## Scores" in files["README.md"]


def test_a_merged_model_goes_up_with_a_card_of_its_own(hub, tiny_run, tmp_path):
    export(tiny_run, "merged", output_dir=tmp_path / "merged", push_to_hub="team/weather", private=False)
    assert not is_private(hub.repos["team/weather"])
    (files,) = hub.commits
    card = files["README.md"].decode()
    assert "library_name: transformers" in card
    assert "merged into its base" in card
    assert "onegpu merge" not in card
    assert "model.safetensors" in files
    assert not [name for name in files if "checkpoint" in name or name.startswith(".")]


@pytest.mark.parametrize(
    ("token", "refuse", "message"),
    [
        (None, {}, "nobody is logged in to the hub: log in with `hf auth login`"),
        ("hf_wrong", {}, "doesn't take the token"),
        (TOKEN, {"/api/repos/create": 403}, r"refused ada/weather \(403.*may not write there"),
        (TOKEN, {"/preupload/": 403}, "refused ada/weather"),
        (TOKEN, {"/commit/": 403}, "refused ada/weather"),
    ],
)
def test_a_hub_that_refuses_is_one_sentence(
    hub, tiny_run, monkeypatch, tmp_path, capsys, token, refuse, message
):
    import re

    hub.refuse = refuse
    monkeypatch.setenv("HF_TOKEN", token or "")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "none"))
    status, out, err = call(
        monkeypatch, capsys, "export", str(tiny_run), "--to", "adapter", "--push-to-hub", "weather"
    )
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert re.search(message, err)
    assert hub.commits == []


def test_a_name_that_cannot_be_one_and_a_folder_without_a_card(hub, tiny_run, tmp_path):
    with pytest.raises(ValueError, match="can't be the name of a repository"):
        export(tiny_run, "adapter", push_to_hub="a/b/c")
    with pytest.raises(ValueError, match="has no model card"):
        push(tmp_path, "ada/x")
