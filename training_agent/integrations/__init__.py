"""The agent in training libraries: one callback each. Importing this package loads no library.

    from training_agent.integrations.huggingface import SdcCallback   # transformers' Trainer
    from training_agent.integrations.lightning import SdcCallback     # Lightning's Trainer

Each refuses by name what it cannot guard, attaches the guard when training begins, asks it before every save,
and keeps a record beside each checkpoint. Accelerate needs no callback: `training_agent.attach` takes what
`accelerator.prepare` returns.
"""
