"""Push an adapter or a merged model to the hub, in one commit. The login is huggingface_hub's own."""

from __future__ import annotations

from pathlib import Path

LOGIN = "log in with `hf auth login` (a token with write access), then push again"


def check_login(repo_id: str) -> str:
    """See that there is a login and that the name can be one of a repository; return the name with its owner.

    Raises
    ------
    ValueError
        If not; the message says what to do.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError:
        raise ValueError(
            f"{repo_id!r} can't be the name of a repository: expected NAME or OWNER/NAME of letters, digits, - _ and ."
        ) from None
    if get_token() is None:
        raise ValueError(f"nobody is logged in to the hub: {LOGIN}")
    try:
        user = HfApi().whoami()["name"]
    except HfHubHTTPError as error:
        raise ValueError(
            f"the hub doesn't take the token that is stored here ({_status(error)}): {LOGIN}"
        ) from error
    except Exception as error:
        raise ValueError(f"the hub can't be reached ({type(error).__name__}): push again later") from error
    return repo_id if "/" in repo_id else f"{user}/{repo_id}"


def push(folder: Path, repo_id: str, *, private: bool = True) -> str:
    """Upload a folder as one commit, making the repository if there is none; return its address.

    Parameters
    ----------
    folder
        An adapter's or a model's, with its card (README.md). No checkpoints or optimizer states.
    private
        Of a repository that is made now; one that exists stays as it is.

    Raises
    ------
    ValueError
        If there is no card, or the hub refuses; nothing is left half-uploaded.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    if not (folder / "README.md").is_file():
        raise ValueError(f"{folder} has no model card (README.md): write one before it goes to the hub")
    api = HfApi()
    try:
        url = api.create_repo(repo_id, repo_type="model", private=private, exist_ok=True)
        api.upload_folder(
            repo_id=url.repo_id, folder_path=folder, commit_message="Upload from onegpu",
            ignore_patterns=["checkpoint-*", "*.pt", "*.bin", "*.part", ".*"],
        )  # fmt: skip
    except HfHubHTTPError as error:
        raise ValueError(
            f"the hub refused {repo_id} ({_status(error)}): nothing was uploaded. {_advice(error)}"
        ) from error
    except OSError as error:
        raise ValueError(
            f"the upload to {repo_id} broke off ({type(error).__name__}: {error}): push again, nothing is half-way there"
        ) from error
    return str(url)


def _status(error: Exception) -> str:
    response = getattr(error, "response", None)
    said = getattr(error, "server_message", None) or (str(error).splitlines() or [""])[0]
    return f"{response.status_code}: {said}" if response is not None else said


def _advice(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"The token may not write there: {LOGIN}, or choose a repository of your own"
    return "Try again later, or another name"
