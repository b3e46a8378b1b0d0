"""The `sdc` command line: is everything ready, what happened, and a person's decision.

In: arguments, the caller's AWS identity, the deployment's outputs. Out: text or JSON, documented exit codes.
Needs the extras `aws` and `cli`; nothing that a training process imports is in here.

app          commands and options        deployment   where the pipeline stands, by its outputs
aws          clients, signed requests    story        an execution's history as steps (pure)
doctor       checks with remedies        preflight    a training script, up to its first update
screen       tables, lines, JSON         failures     errors and exit codes
report       one page on a run or incident
"""
