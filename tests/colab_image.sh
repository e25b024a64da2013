#!/usr/bin/env bash
# Run the unit tests and labs/ under the library versions of Colab's image (constraints-colab.txt), in a new virtual
# environment. Arguments go to pytest; without any: the tests that aren't slow and drive no browser, and the labs.
set -euo pipefail
cd "$(dirname "$0")/.."

venv="$(mktemp -d)/venv"
trap 'rm -rf "$(dirname "$venv")"' EXIT
python3 -m venv "$venv"
"$venv/bin/pip" install -q -c constraints-colab.txt -e ".[test]"
if [ $# -eq 0 ]; then
  set -- -n 2 --dist loadfile -m "not slow and not browser" tests labs
fi
"$venv/bin/python" -m pytest "$@"
