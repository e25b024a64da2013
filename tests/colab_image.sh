#!/usr/bin/env bash
# The nearest thing to Colab's image: Python 3.13 and the image's versions (constraints-colab.txt) in a new virtual
# environment, torchao 0.10 beside them, no onegpu. The notebooks lie in a folder without the repository; the first setup
# cell installs onegpu with real pip, from a tag in a local git repository that stands in for GitHub. Then all lessons and
# labs run, or the notebooks given as arguments ("labs/01_sft_datasets.ipynb").
# Left out: the GPU and its drivers, Colab's own front end and widgets manager, the image's other 600 packages, and
# comparing outputs with the stored ones, which were made with other versions.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
root=$PWD
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

python=${COLAB_PYTHON:-$(ls "$HOME"/.pyenv/versions/3.13*/bin/python 2>/dev/null | tail -1 || true)}
python=${python:-$(command -v python3.13 || command -v python3)}
echo "Colab's image: $("$python" --version), the image has 3.13"

# The image, without what the setup cell has to bring, and nbval to run the notebooks.
"$python" -m venv "$work/venv"
on_image=$(sed '/^# Not on the image/,$d; /^#/d; s/==.*//' constraints-colab.txt)
# shellcheck disable=SC2086
"$work/venv/bin/pip" install -q -c constraints-colab.txt $on_image nbval
site=$("$work/venv/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
mkdir -p "$site/google/colab"
touch "$site/google/colab/__init__.py"
echo "import google.colab" > "$site/colab_stand_in.pth" # the setup cell looks for it in sys.modules

# What is committed here, under the tag that the setup cells name, where pip looks for the repository's address.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
address=$(sed -n 's/^Repository = "\(.*\)"/\1/p' pyproject.toml)
git clone -q --bare "$root" "$work/onegpu.git"
git -C "$work/onegpu.git" tag -f "v$version" HEAD >/dev/null
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$work/onegpu.git.insteadOf" GIT_CONFIG_VALUE_0="$address"

mkdir "$work/content"
cp -r course labs "$work/content/"
cd "$work/content"
[ $# -gt 0 ] || set -- course/*.ipynb labs/*.ipynb
PATH="$work/venv/bin:$PATH" python -m pytest -q -p no:cacheprovider -o addopts= --rootdir . \
  --nbval-lax --nbval-current-env --nbval-cell-timeout=600 "$@"
"$work/venv/bin/pip" list 2>/dev/null | grep -iE "^(onegpu|bitsandbytes|gguf|torch|torchao|peft|transformers) "
! "$work/venv/bin/pip" show -q torchao 2>/dev/null || { echo "the setup cell left torchao 0.10 in place"; exit 1; }
