"""The three checks, one module each, usable alone: `nonfinite`, `replay`, `weights`. Next: `guard` orders them."""
