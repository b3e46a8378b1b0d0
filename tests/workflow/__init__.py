"""The deployed machine and the real handlers on the local cloud: one cloud for the package."""
