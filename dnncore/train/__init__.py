"""The offline training entrypoint: `dnntrain CONFIG.toml [key.path=value ...]`.

What lives here: configuration, data, schedules, optimizers, the loop, checkpoints, evaluation and export of a model package.
What does not: kernels and nets (dnncore.ops, dnncore.nn), and anything about serving.
"""
