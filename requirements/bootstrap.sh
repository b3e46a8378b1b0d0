#!/usr/bin/env bash
# Makes the one environment of the project: bootstrap.sh VENV STAMP   (PYTHON=python3, TORCH=pinned|system)
set -euo pipefail
venv=$1 stamp=$2
here=$(cd "$(dirname "$0")" && pwd)

fail() { printf 'set-up failed: %s\n' "$1" >&2; exit 1; }

command -v "$PYTHON" >/dev/null || fail "$PYTHON is not on PATH. Install Python 3.10 or newer, or say PYTHON=/path/to/python3."
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$PYTHON" --version) is too old: Python 3.10 or newer is needed (PYTHON=/path/to/python3 names another)."
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "$PYTHON has no venv module. On Debian or Ubuntu: apt-get install python3-venv."

case "$TORCH" in
  pinned) flags=() ;;
  system)
    flags=(--system-site-packages)
    "$PYTHON" -c 'import torch, sys; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4))' 2>/dev/null ||
      fail "TORCH=system asks for an installed torch 2.4 or newer, and $PYTHON has none. Leave TORCH away to download it." ;;
  *) fail "TORCH=$TORCH is unknown: pinned (default) or system." ;;
esac

rm -f "$venv"/.ready-*
"$PYTHON" -m venv --clear "${flags[@]+"${flags[@]}"}" "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check -q)

echo "set-up 1/3: tools of the tests and of the local cloud (about 250 MB to download, 1.3 GB on disk; some minutes, once)"
"${pip[@]}" install --require-hashes -r "$here/dev.txt" || fail "pip could not install requirements/dev.txt (is a package index reachable?)"
if [ "$TORCH" = pinned ]; then
  echo "set-up 2/3: torch (a CPU wheel is about 200 MB, Triton the same; the default Linux wheel is a CUDA build of about 2.5 GB: TORCH=system uses an installed one)"
  "${pip[@]}" install -r "$here/torch.txt" || fail "pip could not install torch; TORCH=system uses one that is installed"
else
  echo "set-up 2/3: torch of $PYTHON is used"
fi
"$venv/bin/python" -c 'import triton' 2>/dev/null ||
  "${pip[@]}" install --no-deps -r "$here/triton.txt" || fail "pip could not install requirements/triton.txt"
echo "set-up 3/3: the agent itself, from this folder"
"${pip[@]}" install --no-deps --no-build-isolation -e "$here/.." || fail "pip could not install the agent from this folder"
touch "$stamp"
