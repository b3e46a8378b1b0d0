#!/usr/bin/env bash
# What `make examples` needs beside .venv: examples.sh PYTHON FOLDER
set -euo pipefail
python=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)

fail() { printf 'set-up of the examples failed: %s\n' "$1" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "transformers 5.24 needs Python 3.11 or newer; say PYTHON=/path/to/python3.11 after removing .venv."
echo "set-up: transformers, lightning, accelerate (about 60 MB to download, once)"
# no dependencies: torch, numpy and what else .venv has must not be there twice
"$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes --upgrade \
  --target "$folder" -r "$here/examples.txt" || fail "pip could not install requirements/examples.txt"
touch "$folder/.ready"
