"""A repro capsule: the one micro-batch that an alarm is about, in one file, to be computed again anywhere.

choice      which micro-batches of an alarm get a capsule (pure)
container   plain values and tensors as bytes, and back: a file from a stranger runs no code
content     what a capsule says, and the capture in it
record      on an alarm: built in memory, written beside the spool in a bounded time
operations  what a computation is made of: is another GPU's reference of the same model?
recompute   `sdc replay`: computed again with the checkpoint; equal, different or undecided
receipt     the targeted-audit result that the pipeline reads
"""
