"""The three checks, one module each, usable alone: `nonfinite`, `replay`, `weights`; `guard` orders them."""
