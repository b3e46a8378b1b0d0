#!/usr/bin/env bash
# What `make test-browser` needs beside .venv: browser.sh PYTHON FOLDER. Chromium by apt where root and apt are at hand.
set -euo pipefail
python=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)

fail() { printf 'set-up of the browser test failed: %s\n' "$1" >&2; exit 1; }

chromium() { command -v "${CHROMIUM:-chromium}" || command -v chromium-browser || command -v google-chrome; }

if ! chromium >/dev/null; then
  install="Install one (Debian: apt-get install chromium), or say CHROMIUM=/path/to/chromium."
  command -v apt-get >/dev/null || fail "no Chromium is on PATH, and there is no apt-get. $install"
  [ "$(id -u)" = 0 ] || fail "no Chromium is on PATH, and only root may install it. $install"
  echo "set-up: chromium, by apt (about 100 MB, once)"
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null ||
    fail "apt-get could not install chromium. $install"
fi
"$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes --upgrade \
  --target "$folder" -r "$here/browser.txt" || fail "pip could not install requirements/browser.txt"
touch "$folder/.ready"
